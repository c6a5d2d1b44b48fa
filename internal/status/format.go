package status

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// count is a whole number with thousands apart: 1,234,567.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	var b strings.Builder
	for i, r := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(r)
	}
	return sign + b.String()
}

// rate is a number per second, as short as it is still told apart.
func rate(f float64) string {
	switch {
	case f <= 0 || math.IsNaN(f) || math.IsInf(f, 0):
		return "0/s"
	case f < 10:
		return strconv.FormatFloat(f, 'f', 1, 64) + "/s"
	}
	return count(int64(math.Round(f))) + "/s"
}

// size is bytes in binary units.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, i := float64(n)/unit, 0
	for f >= unit && i < 4 {
		f, i = f/unit, i+1
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + []string{"KiB", "MiB", "GiB", "TiB", "PiB"}[i]
}

// ago is a length of time in one or two units: 90 s, 3 min 5 s, 2 h 5 min, 4 d 3 h.
func ago(d time.Duration) string {
	s := int64(d.Round(time.Second).Seconds())
	pair := func(big int64, bigUnit string, small int64, smallUnit string) string {
		if small == 0 {
			return fmt.Sprintf("%d %s", big, bigUnit)
		}
		return fmt.Sprintf("%d %s %d %s", big, bigUnit, small, smallUnit)
	}
	switch {
	case s < 120:
		return strconv.FormatInt(max(s, 0), 10) + " s"
	case s < 600:
		return pair(s/60, "min", s%60, "s")
	case s < 3600:
		return strconv.FormatInt(s/60, 10) + " min"
	case s < 86400:
		return pair(s/3600, "h", s/60%60, "min")
	}
	return pair(s/86400, "d", s/3600%24, "h")
}

// span is a short length of time, precise where it is small: 8 ms, 1.2 s.
func span(sec float64) string {
	switch {
	case sec < 0:
		return "-" + span(-sec)
	case sec < 1:
		return strconv.FormatFloat(sec*1000, 'f', 0, 64) + " ms"
	case sec < 60:
		return strconv.FormatFloat(sec, 'f', 1, 64) + " s"
	}
	return ago(seconds(sec))
}

// clockTime is a time of the day, with the date where it is not today's.
func clockTime(t, now time.Time) string {
	if t.IsZero() {
		return "–"
	}
	if t.Year() == now.Year() && t.YearDay() == now.YearDay() {
		return t.UTC().Format("15:04:05")
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}
