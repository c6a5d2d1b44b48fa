package replay

import "strings"

// Room for the literals and slots of most events.
const (
	literalBytes = 1536
	opsCount     = 32
)

// build writes the event's JSON in the key order of the live stream since
// August 2025.
func (sp *spec) build() *template {
	kind := sp.kind
	if sp.log {
		kind = "log"
	}
	t := &template{wiki: sp.wiki, kind: kind, back: sp.back, bot: sp.bot, aged: sp.aged,
		literal: make([]byte, 0, literalBytes), ops: make([]op, 0, opsCount)}
	b := &builder{t: t, ascii: sp.ascii}
	page := "https://" + sp.wiki.domain + "/wiki/" + url(sp.title)
	sp.meta(b, page)
	if sp.hasID() {
		b.raw(`,"id":`).slot(slotChange)
	}
	if sp.flaw == flawType {
		b.raw(`,"type":142`)
	} else {
		b.raw(`,"type":"` + kind + `"`)
	}
	if sp.flaw == flawNamespace {
		b.raw(`,"namespace":"`).int(int64(sp.namespace)).raw(`"`)
	} else {
		b.raw(`,"namespace":`).int(int64(sp.namespace))
	}
	b.str("title", sp.title)
	if kind != "142" {
		b.str("title_url", page)
	}
	b.str("comment", sp.comment)
	b.raw(`,"timestamp":`).slot(slotSeconds)
	b.str("user", sp.user)
	if sp.flaw == flawBot {
		b.raw(`,"bot":"no"`)
	} else {
		b.boolean("bot", sp.bot)
	}
	switch {
	case sp.log:
		sp.logFields(b)
	case sp.editNew():
		sp.editFields(b)
	case kind == "categorize" || kind == "external":
		sp.notifyURL(b, "0")
	}
	b.str("server_url", "https://"+sp.wiki.domain)
	b.str("server_name", sp.wiki.domain)
	b.raw(`,"server_script_path":"/w"`)
	b.str("wiki", sp.wiki.db)
	b.str("parsedcomment", sp.parsed)
	b.raw("}").done()
	return t
}

func (sp *spec) meta(b *builder, page string) {
	schema, domain := "/mediawiki/recentchange/1.0.0", sp.wiki.domain
	if sp.canary {
		schema, domain = "/mediawiki/recentchange/1.0.1", "canary"
	}
	b.raw(`{"$schema":"` + schema + `","meta":{"uri":"`).text(page)
	b.raw(`","request_id":"`).slot(slotRequest)
	switch sp.flaw {
	case flawNoID:
	case flawBadID:
		b.raw(`","id":"event-`).slot(slotOffset)
	default:
		b.raw(`","id":"`).slot(slotID)
	}
	b.raw(`","domain":"` + domain + `","stream":"mediawiki.recentchange","dt":"`).slot(slotTime)
	b.raw(`","topic":"`).slot(slotCentre).raw(`.mediawiki.recentchange","partition":0,"offset":`).slot(slotOffset).raw(`}`)
}

// bareCanary is a canary with $schema and meta only.
func bareCanary() *template {
	t := &template{wiki: &wikis[0]}
	b := &builder{t: t}
	b.raw(`{"$schema":"/mediawiki/recentchange/1.0.1","meta":{"dt":"`).slot(slotTime)
	b.raw(`","stream":"mediawiki.recentchange","domain":"canary","id":"`).slot(slotID)
	b.raw(`","request_id":"`).slot(slotRequest)
	b.raw(`","topic":"`).slot(slotCentre).raw(`.mediawiki.recentchange","partition":0,"offset":`).slot(slotOffset).raw(`}}`).done()
	return t
}

// notifyURL has three shapes: with the change's id on wikis that patrol,
// without it elsewhere, and without diff for new pages.
func (sp *spec) notifyURL(b *builder, oldid string) {
	q := "diff=" + string(markRevNew) + "&oldid=" + oldid
	switch {
	case sp.kind == "new":
		q = "oldid=" + string(markRevNew) + "&rcid=" + string(markChange)
	case sp.wiki.patrols:
		q += "&rcid=" + string(markChange)
	}
	b.str("notify_url", "https://"+sp.wiki.domain+"/w/index.php?"+q)
}

func (sp *spec) editFields(b *builder) {
	sp.notifyURL(b, string(markRevOld))
	b.boolean("minor", sp.minor)
	if sp.wiki.patrols || sp.kind == "new" {
		b.boolean("patrolled", sp.patrolled)
	}
	if sp.kind == "new" {
		b.raw(`,"length":{"new":`).slot(slotLenNew).raw(`},"revision":{"new":`).slot(slotRevNew).raw(`}`)
		return
	}
	b.raw(`,"length":{"old":`).slot(slotLenOld).raw(`,"new":`).slot(slotLenNew)
	b.raw(`},"revision":{"old":`).slot(slotRevOld).raw(`,"new":`).slot(slotRevNew).raw(`}`)
}

// logFields writes log_id to log_action_comment. log_params is an object for
// some types and an empty list for others, and its values' types differ.
func (sp *spec) logFields(b *builder) {
	if sp.kind == "abusefilter" {
		b.raw(`,"log_id":0`)
	} else {
		b.raw(`,"log_id":`).slot(slotLog)
	}
	l := logKinds[sp.kind]
	b.str("log_type", sp.kind)
	b.str("log_action", l.action)
	b.raw(`,"log_params":`)
	b.markup(strings.ReplaceAll(l.params, "TARGET", sp.subject))
	comment := strings.NewReplacer("USER", sp.user, "TITLE", sp.title, "TARGET", sp.subject).Replace(l.comment)
	if sp.comment != "" {
		comment += ": " + sp.comment
	}
	b.str("log_action_comment", comment)
}

// markup appends JSON as it is, marks becoming slots.
func (b *builder) markup(s string) {
	from := 0
	for i, r := range s {
		if k, ok := markSlots[r]; ok {
			b.raw(s[from:i]).slot(k)
			from = i + 1
		}
	}
	b.raw(s[from:])
}

// logKinds are the shapes of log events by log_type.
var logKinds = map[string]struct{ action, params, comment string }{
	"abusefilter": {"hit", `{"action":"edit","filter":"225","actions":"tag","log":` + string(markNumber) + `}`,
		`USER triggered [[Special:AbuseFilter/225|filter 225]], performing the action "edit" on [[TITLE]]. Actions taken: Tag ([[Special:AbuseLog/` + string(markNumber) + `|details]])`},
	"upload": {"upload", `{"img_sha1":"3seh3qcw2hu0inidys8kyngm` + string(markNumber) + `","img_timestamp":"20260301120000"}`,
		`uploaded &quot;[[TITLE]]&quot;`},
	"newusers": {"create", `{"userid":` + string(markNumber) + `}`, `New user account`},
	"block":    {"block", `{"duration":"1 day","flags":"anononly,nocreate","sitewide":true}`, `blocked [[TITLE]] with an expiration time of 1 day (anon. only, account creation blocked)`},
	"patrol": {"patrol", `{"curid":"` + string(markRevNew) + `","previd":"` + string(markRevOld) + `","auto":0}`,
		`marked revision ` + string(markRevNew) + ` of [[TITLE]] patrolled `},
	"delete":  {"delete", `[]`, `deleted &quot;[[TITLE]]&quot;`},
	"thanks":  {"thank", `[]`, `USER thanked [[TITLE]]`},
	"review":  {"approve", `[]`, `reviewed a version of [[TITLE]]`},
	"move":    {"move", `{"target":"TARGET","noredir":"0"}`, `moved [[TITLE]] to [[TARGET]]`},
	"protect": {"protect", `{"description":"[edit=autoconfirmed] (indefinite)","cascade":false,"details":[{"type":"edit","level":"autoconfirmed","expiry":"infinity","cascade":false}]}`, `protected &quot;[[TITLE]]&quot; [edit=autoconfirmed] (indefinite)`},
}
