package replay

import "strings"

// flaw is a way to violate the contract.
type flaw int

const (
	flawNone      flaw = iota
	flawNoID           // meta.id is missing
	flawNamespace      // namespace is a text
	flawCut            // the JSON ends in the middle
	flawBot            // bot is a text
	flawBadID          // meta.id is not a UUID
	flawType           // type is a number
	flaws
)

// spec is what a template is made from.
type spec struct {
	seat
	wiki      *wiki
	title     string
	namespace int
	user      string
	bot       bool
	minor     bool
	patrolled bool
	// subject is the page that a categorization or a log speaks of.
	subject string
	canary  bool
	flaw    flaw
	ascii   bool
	marks   bool
	empty   bool
	aged    bool

	comment, parsed string
}

// newSpec draws an event for a seat. head is the group's first event: a
// follower has its site and its user.
func newSpec(r *rng, s seat, head *spec) spec {
	sp := spec{seat: s}
	if s.back > 0 {
		sp.wiki, sp.user, sp.bot, sp.subject = head.wiki, head.user, head.bot, head.title
	} else {
		sp.wiki = pickWiki(r, s)
		sp.drawUser(r)
	}
	sp.minor = r.chance(13)
	sp.patrolled = !r.chance(8)
	sp.ascii = r.chance(5)
	sp.marks = r.chance(35)
	sp.empty = s.editNew() && r.chance(8)
	sp.drawTitle(r)
	if sp.subject == "" {
		sp.subject = pageTitle(r, sp.wiki)
	}
	sp.aged = s.kind == "upload" && r.chance(30)
	return sp
}

// pickWiki draws a site by weight; some kinds have their own.
func pickWiki(r *rng, s seat) *wiki {
	switch s.kind {
	case "upload":
		return &wikis[0]
	case "142":
		return &wikis[7] // the French one
	case "external":
		return &wikis[2+r.n(len(wikis)-2)]
	}
	at := r.n(100)
	for i := range wikis {
		if at -= wikis[i].weight; at < 0 {
			return &wikis[i]
		}
	}
	return &wikis[2]
}

func (sp *spec) drawUser(r *rng) {
	bots := 25
	if sp.wiki.titles != articleTitles {
		bots = 60
	}
	switch {
	case sp.kind == "newusers" || sp.kind == "thanks":
		sp.user = sp.wiki.userPrefix + string(markUser)
	case r.chance(bots):
		sp.bot, sp.user = true, sp.wiki.userPrefix+string(markUser)+"Bot"
	case r.chance(12):
		sp.user = "~2026-" + string(markTemp)
	case r.chance(25):
		sp.user = strings.TrimSuffix(sp.wiki.userPrefix, "-") + " " + string(markUser)
	default:
		sp.user = sp.wiki.userPrefix + string(markUser)
	}
}

// some joins one to n words of a language.
func (l *language) some(r *rng, n int) string {
	out := r.pick(l.words)
	for range r.n(n) {
		out += " " + r.pick(l.words)
	}
	return out
}

// pageTitle draws the title of a content page.
func pageTitle(r *rng, w *wiki) string {
	switch w.titles {
	case itemTitles:
		return "Q" + string(markNumber)
	case fileTitles:
		return "File:" + w.lang.some(r, 3) + " (" + string(markNumber) + ").jpg"
	}
	t := w.lang.some(r, 3)
	if r.chance(60) {
		t += " (" + string(markNumber) + ")"
	}
	return t
}

func (sp *spec) drawTitle(r *rng) {
	l := sp.wiki.lang
	switch sp.kind {
	case "categorize":
		sp.namespace, sp.title = 14, l.category+":"+l.some(r, 4)
	case "142":
		sp.namespace, sp.title = 2600, "Sujet:W"+string(markUser)+string(markNumber)
	case "newusers", "block":
		sp.namespace, sp.title = 2, "User:"+sp.wiki.userPrefix+string(markUser)
	case "thanks":
		sp.namespace, sp.title = 3, l.talk+":"+l.some(r, 2)
	case "abusefilter":
		sp.title = pageTitle(r, sp.wiki)
		if r.chance(20) {
			sp.namespace, sp.title = -1, l.special+":AbuseLog"
		}
	default:
		sp.title = pageTitle(r, sp.wiki)
		switch {
		case sp.wiki.titles == fileTitles:
			sp.namespace = 6
		case sp.editNew() && r.chance(12):
			sp.namespace, sp.title = 3, l.talk+":"+l.some(r, 2)
		case sp.editNew() && r.chance(2):
			sp.namespace, sp.title = 1198, "Translations:"+l.some(r, 2)+"/"+string(markNumber)
		}
	}
}

// hasID reports whether the event carries id: some logs do not.
func (sp *spec) hasID() bool {
	switch sp.kind {
	case "abusefilter", "patrol", "thanks", "review":
		return false
	}
	return true
}

// template builds the event, then fills its comment up to a drawn size.
func (sp *spec) template(r *rng) *template {
	kind := sp.kind
	if sp.log {
		kind = "log"
	}
	goal := target(r, kind)
	sp.drawComment(r, goal-sp.build().size())
	t := sp.build()
	if lack := goal - t.size(); lack > labelOverhead && sp.parsed != "" {
		sp.parsed += sp.label(r, lack-labelOverhead)
		t = sp.build()
	}
	if sp.flaw == flawCut {
		t.cut()
	}
	return t
}

// size is the length of the event once its slots are filled.
func (t *template) size() int {
	return len(t.append(make([]byte, 0, 2*literalBytes), &values{seconds: 1_700_000_000}))
}

// cut ends the template in the middle of a value.
func (t *template) cut() {
	t.ops = t.ops[:len(t.ops)*6/10]
	t.ops[len(t.ops)-1].slot = slotEnd
	n := 0
	for _, o := range t.ops {
		n += int(o.size)
	}
	t.literal = t.literal[:n]
}

// commentMax is the longest comment of the wikis, in characters.
const commentMax = 480

// drawComment writes comment and parsedcomment into about room bytes.
func (sp *spec) drawComment(r *rng, room int) {
	l := sp.wiki.lang
	link := "/wiki/" + url(sp.subject)
	switch {
	case sp.kind == "categorize":
		verb := " added to category"
		if r.chance(30) {
			verb = " removed from category"
		}
		sp.comment = "[[:" + sp.subject + "]]" + verb
		sp.parsed = `<a href="` + link + `" title="` + sp.quoted(html(sp.subject)) + `">` + html(sp.subject) + `</a>` + verb
		return
	case sp.kind == "142":
		sp.comment = sp.user + ` edited a comment on "` + l.some(r, 4) + `."`
		sp.parsed = html(sp.comment)
		return
	case sp.empty || sp.kind == "abusefilter" || sp.kind == "newusers" || sp.kind == "patrol" || sp.kind == "thanks":
		return
	}
	sp.comment = r.pick(l.comments)
	if sp.wiki.titles == itemTitles && sp.editNew() {
		sp.comment = "/* wbsetclaim-create:2||1 */ [[Property:P" + string(markNumber) + "]]: " + sp.comment
	}
	if sp.kind == "upload" && r.chance(30) {
		sp.comment += "\n" + r.pick(l.comments)
	}
	if r.chance(1) {
		sp.comment += " 🙂"
	}
	for 2*len(sp.comment)+260 < room && len([]rune(sp.comment)) < commentMax {
		sp.comment += ", " + r.pick(l.comments)
	}
	sp.parsed = html(sp.comment)
	if room > len(sp.comment)*2+2*len(link)+40 {
		sp.comment += " [[" + sp.subject + "]]"
		sp.parsed += ` <a href="` + link + `" title="` + sp.quoted(html(sp.subject)) + `">` + html(sp.subject) + `</a>`
	} else if sp.marks {
		sp.parsed = sp.quoted(sp.parsed)
	}
}

// quoted puts direction marks around a text, where the event has them.
func (sp *spec) quoted(s string) string {
	switch {
	case !sp.marks:
		return s
	case sp.wiki.lang.rtl:
		return "\u200f" + s + "\u200f"
	}
	return "\u200e" + s + "\u200e"
}

// labelOverhead is about what label adds to its words.
const labelOverhead = 110

// label is the markup that a wiki puts around an item's label.
func (sp *spec) label(r *rng, room int) string {
	words := r.pick(sp.wiki.lang.words)
	for len(words) < room {
		words += " " + r.pick(sp.wiki.lang.words)
	}
	return ` <span class="wb-itemlink"><span class="wb-itemlink-label" lang="en" dir="ltr">` + sp.quoted(words) + `</span></span>`
}
