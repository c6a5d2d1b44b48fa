package event

import "math"

// TimeFormat says how a time is written.
type TimeFormat uint8

// The formats. The zero value is RFC3339.
const (
	RFC3339 TimeFormat = iota
	EpochSeconds
	EpochMillis
)

// Micros decodes a time to microseconds since 1970-01-01T00:00:00Z.
//
// RFC3339 wants a string: any year from 0000 to 9999, any offset, a fraction
// of any length (cut, towards the past, to microseconds). A leap second
// (23:59:60 UTC on the last day of a month) is the first second of the next
// day, as POSIX time has it; any other :60 is refused. EpochSeconds and
// EpochMillis want a number without a fraction, within the same years.
func (v Value) Micros(doc []byte, f TimeFormat, scratch []byte) (micros int64, grown []byte, r Reason) {
	if f == RFC3339 {
		return written(v, doc, scratch, ParseRFC3339)
	}
	n, r := v.Int64(doc)
	if r == NumberOutOfRange {
		return 0, scratch, BadTimestamp
	}
	if r != OK {
		return 0, scratch, r
	}
	unit := int64(1_000_000)
	if f == EpochMillis {
		unit = 1_000
	}
	if n > math.MaxInt64/unit || n < math.MinInt64/unit || n*unit < minMicros || n*unit > maxMicros {
		return 0, scratch, BadTimestamp
	}
	return n * unit, scratch, OK
}

const (
	microsPerSecond = 1_000_000
	secondsPerDay   = 86_400
	// minMicros and maxMicros are the first and last microsecond of the years
	// 0000 and 9999.
	minMicros = -719_528 * secondsPerDay * microsPerSecond
	maxMicros = 2_932_897*secondsPerDay*microsPerSecond - 1
)

// LocalMicros decodes a time without a zone; see ParseLocalTime.
func (v Value) LocalMicros(doc, scratch []byte) (micros int64, grown []byte, r Reason) {
	return written(v, doc, scratch, ParseLocalTime)
}

// Days decodes a date; see ParseDate.
func (v Value) Days(doc, scratch []byte) (days int32, grown []byte, r Reason) {
	return written(v, doc, scratch, ParseDate)
}

// written decodes a string that holds a time as parse reads it.
func written[T int32 | int64](v Value, doc, scratch []byte, parse func([]byte) (T, bool)) (t T, grown []byte, r Reason) {
	if v.Kind != String {
		return 0, scratch, TypeMismatch
	}
	text, grown := v.Text(doc, scratch)
	t, ok := parse(text)
	if !ok {
		return 0, grown, BadTimestamp
	}
	return t, grown, OK
}

// ParseDate reads YYYY-MM-DD of the years 0000 to 9999, in days since 1970-01-01.
func ParseDate(b []byte) (days int32, ok bool) {
	n, ok := date(b)
	return int32(n), ok && len(b) == dateLen //nolint:gosec // four digits of a year
}

// ParseLocalTime reads a time as RFC 3339 writes it, but without Z or an offset and
// with a T or a space between date and time. It gives the microseconds that would
// have passed since 1970 were it UTC; there is no second 60.
func ParseLocalTime(b []byte) (micros int64, ok bool) {
	micros, rest, ok := clockTime(b)
	return micros, ok && len(rest) == 0 && b[17] != '6'
}

// ParseRFC3339 reads a time as RFC 3339 writes it; see Micros.
func ParseRFC3339(b []byte) (micros int64, ok bool) {
	micros, rest, ok := clockTime(b)
	if !ok || b[dateLen] == ' ' {
		return 0, false
	}
	offset, ok := zone(rest)
	if !ok {
		return 0, false
	}
	micros -= offset * microsPerSecond
	if b[17] == '6' && !leap(floorSeconds(micros)) {
		return 0, false
	}
	return micros, micros >= minMicros && micros <= maxMicros
}

func floorSeconds(micros int64) int64 {
	s := micros / microsPerSecond
	if micros%microsPerSecond < 0 {
		s--
	}
	return s
}

const dateLen = len("2006-01-02")

// date reads the date that b begins with, in days since 1970-01-01.
func date(b []byte) (days int, ok bool) {
	if len(b) < dateLen || b[4] != '-' || b[7] != '-' {
		return 0, false
	}
	year, month, day := two(b[0:])*100+two(b[2:]), two(b[5:]), two(b[8:])
	if two(b[0:]) < 0 || two(b[2:]) < 0 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return 0, false
	}
	return daysBefore(year, month, day), true
}

// clockTime reads date and time of day and gives what is behind them. A second of
// 60 is taken for the one after it; the caller says whether it may be.
func clockTime(b []byte) (micros int64, rest []byte, ok bool) {
	days, ok := date(b)
	if !ok || len(b) < 19 || b[10]|0x20 != 't' && b[10] != ' ' || b[13] != ':' || b[16] != ':' {
		return 0, nil, false
	}
	hour, minute, second := two(b[11:]), two(b[14:]), two(b[17:])
	if hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60 {
		return 0, nil, false
	}
	rest = b[19:]
	fraction := int64(0)
	if len(rest) > 0 && rest[0] == '.' {
		n := 1
		scale := int64(100_000)
		for ; n < len(rest) && rest[n]-'0' <= 9; n++ {
			fraction += int64(rest[n]-'0') * scale
			scale /= 10
		}
		if n == 1 {
			return 0, nil, false
		}
		rest = rest[n:]
	}
	seconds := int64(days)*secondsPerDay + int64(hour*3600+minute*60+second)
	return seconds*microsPerSecond + fraction, rest, true
}

// zone reads Z or ±hh:mm, in seconds east of UTC.
func zone(b []byte) (seconds int64, ok bool) {
	if len(b) == 1 && b[0]|0x20 == 'z' {
		return 0, true
	}
	if len(b) != 6 || (b[0] != '+' && b[0] != '-') || b[3] != ':' {
		return 0, false
	}
	h, m := two(b[1:]), two(b[4:])
	if h < 0 || h > 23 || m < 0 || m > 59 {
		return 0, false
	}
	seconds = int64(h*3600 + m*60)
	if b[0] == '-' {
		seconds = -seconds
	}
	return seconds, true
}

// leap reports whether a leap second that was counted into seconds could stand
// there: the second after it opens a month in UTC.
func leap(seconds int64) bool {
	if seconds%secondsPerDay != 0 {
		return false
	}
	return firstOfMonth(int(seconds / secondsPerDay))
}

// two is the number of two digits, far below zero if they are none.
func two(b []byte) int {
	hi, lo := b[0]-'0', b[1]-'0'
	if hi > 9 || lo > 9 {
		return -100_000
	}
	return int(hi)*10 + int(lo)
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// daysBefore counts the days from 1970-01-01 in the Gregorian calendar. Years
// are counted from March, so that the leap day is a year's last.
func daysBefore(year, month, day int) int {
	if month <= 2 {
		year--
		month += 12
	}
	era := year / 400
	if year < 0 {
		era = (year - 399) / 400
	}
	y := year - era*400
	d := (153*(month-3)+2)/5 + day - 1
	return era*146_097 + y*365 + y/4 - y/100 + d - 719_468
}

// firstOfMonth reports whether the day (since 1970-01-01) is a month's first.
func firstOfMonth(days int) bool {
	days += 719_468
	era := days / 146_097
	if days < 0 {
		era = (days - 146_096) / 146_097
	}
	doe := days - era*146_097
	yoe := (doe - doe/1460 + doe/36_524 - doe/146_096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	return doy == (153*mp+2)/5
}
