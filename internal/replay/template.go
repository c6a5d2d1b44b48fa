package replay

import (
	"strconv"
	"unicode/utf8"
)

// slot is what is filled in when an event is written.
type slot uint8

const (
	slotEnd     slot = iota
	slotID           // meta.id
	slotRequest      // meta.request_id
	slotTime         // meta.dt
	slotCentre       // eqiad or codfw
	slotOffset       // meta.offset
	slotChange       // id, and rcid in URLs
	slotSeconds      // timestamp
	slotUser         // six hexadecimal digits of a user's name
	slotTemp         // digits of a temporary account's name
	slotNumber       // seven digits of a title
	slotRevOld
	slotRevNew
	slotLenOld
	slotLenNew
	slotLog // log_id
)

// Marks that stand for slots inside texts, so that a title with a number can
// be escaped for JSON and for URLs as a whole. They never reach the output.
const (
	markNumber = '\x01'
	markUser   = '\x02'
	markTemp   = '\x03'
	markChange = '\x04'
	markRevOld = '\x05'
	markRevNew = '\x06'
	markLog    = '\x07'
)

var markSlots = map[rune]slot{
	markNumber: slotNumber, markUser: slotUser, markTemp: slotTemp, markChange: slotChange,
	markRevOld: slotRevOld, markRevNew: slotRevNew, markLog: slotLog,
}

// op copies the next size bytes of the literal and then fills a slot.
type op struct {
	size int32
	slot slot
}

// template is one event with its slots left open.
type template struct {
	literal []byte
	ops     []op
	wiki    *wiki
	kind    string // the event's type
	// back is how many base events before this one the group began: they share
	// request id, time and user.
	back int
	bot  bool
	// aged is true on an upload whose timestamp may lie years back.
	aged bool
}

// builder writes a template.
type builder struct {
	t     *template
	since int
	// ascii escapes everything beyond ASCII, as some captures have it.
	ascii bool
}

func (b *builder) raw(s string) *builder {
	b.t.literal = append(b.t.literal, s...)
	return b
}

func (b *builder) slot(s slot) *builder {
	b.t.ops = append(b.t.ops, op{int32(len(b.t.literal) - b.since), s})
	b.since = len(b.t.literal)
	return b
}

func (b *builder) int(n int64) *builder { return b.raw(strconv.FormatInt(n, 10)) }

// done ends the template.
func (b *builder) done() { b.slot(slotEnd) }

// text appends a JSON string's content, marks becoming slots.
func (b *builder) text(s string) *builder {
	for _, r := range s {
		if r < ' ' {
			if k, ok := markSlots[r]; ok {
				b.slot(k)
				continue
			}
		}
		switch {
		case r == '"' || r == '\\':
			b.t.literal = append(b.t.literal, '\\', byte(r))
		case r == '\n':
			b.t.literal = append(b.t.literal, '\\', 'n')
		case b.ascii && r >= utf8.RuneSelf && r < 0x10000:
			b.t.literal = append(b.t.literal, '\\', 'u')
			b.t.literal = appendHex(b.t.literal, uint64(r), 4)
		default:
			b.t.literal = utf8.AppendRune(b.t.literal, r)
		}
	}
	return b
}

// str appends "key":"text" with a comma before it.
func (b *builder) str(key, s string) *builder {
	return b.raw(`,"` + key + `":"`).text(s).raw(`"`)
}

// boolean appends "key":true or false with a comma before it.
func (b *builder) boolean(key string, v bool) *builder {
	return b.raw(`,"` + key + `":` + strconv.FormatBool(v))
}

// url escapes a title for a path as MediaWiki does: spaces become underscores,
// bytes beyond a small set are percent-encoded. Marks are kept.
func url(title string) string {
	var out []byte
	for i := range len(title) {
		switch c := title[i]; {
		case c == ' ':
			out = append(out, '_')
		case c < ' ' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9':
			out = append(out, c)
		case c == '_' || c == '-' || c == '.' || c == ':' || c == '/' || c == '(' || c == ')' || c == ',' || c == '~' || c == '!' || c == '*' || c == '@':
			out = append(out, c)
		default:
			out = append(out, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		}
	}
	return string(out)
}

// html escapes a text for parsedcomment.
func html(s string) string {
	var out []byte
	for i := range len(s) {
		switch s[i] {
		case '"':
			out = append(out, "&quot;"...)
		case '&':
			out = append(out, "&amp;"...)
		case '<':
			out = append(out, "&lt;"...)
		case '>':
			out = append(out, "&gt;"...)
		default:
			out = append(out, s[i])
		}
	}
	return string(out)
}

// values are what one event's slots are filled with.
type values struct {
	idSeed, requestSeed uint64
	id, request         int64 // ordinals for the two UUIDs
	ms                  int64 // event time
	seconds             int64
	frame               int64 // for meta.offset
	centre              int   // 0 eqiad, 1 codfw
	ordinal             int64 // for change and log ids
	h                   uint64
	user                uint64
	rev                 int64
}

// centres are the data centres' prefixes of topics, and where their offsets
// begin: both beyond 2^31, far apart.
var centres = [2]string{"eqiad", "codfw"}

var offsetBases = [2]int64{5_900_000_000, 2_400_000_000}

// append writes the event.
func (t *template) append(dst []byte, v *values) []byte {
	lit := t.literal
	for _, o := range t.ops {
		dst = append(dst, lit[:o.size]...)
		lit = lit[o.size:]
		switch o.slot {
		case slotEnd:
		case slotID:
			dst = AppendUUID(dst, v.idSeed, v.id)
		case slotRequest:
			dst = AppendUUID(dst, v.requestSeed, v.request)
		case slotTime:
			dst = appendTime(dst, v.ms)
		case slotCentre:
			dst = append(dst, centres[v.centre]...)
		case slotOffset:
			dst = strconv.AppendInt(dst, offsetBases[v.centre]+v.frame, 10)
		case slotChange:
			dst = strconv.AppendInt(dst, t.wiki.rcBase+v.ordinal, 10)
		case slotSeconds:
			dst = strconv.AppendInt(dst, v.seconds, 10)
		case slotUser:
			dst = appendHex(dst, v.user, 6)
		case slotTemp:
			dst = digits(dst, int64(v.user>>24%90_000)+10_000, 5)
			dst = append(dst, '-')
			dst = digits(dst, int64(v.user>>48%90)+10, 2)
		case slotNumber:
			dst = digits(dst, int64(v.h%9_000_000)+1_000_000, 7)
		case slotRevOld:
			dst = strconv.AppendInt(dst, t.wiki.revBase+v.rev-1-int64(v.h>>40%100_000), 10)
		case slotRevNew:
			dst = strconv.AppendInt(dst, t.wiki.revBase+v.rev, 10)
		case slotLenOld:
			dst = strconv.AppendInt(dst, lenOld(v.h), 10)
		case slotLenNew:
			dst = strconv.AppendInt(dst, max(lenOld(v.h)+int64(v.h>>32%801)-400, 0), 10)
		case slotLog:
			dst = strconv.AppendInt(dst, t.wiki.logBase+v.ordinal, 10)
		}
	}
	return dst
}

func lenOld(h uint64) int64 { return int64(h>>16%60_000) + 200 }
