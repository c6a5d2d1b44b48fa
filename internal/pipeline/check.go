package pipeline

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// check looks at what the keys say together. Every check names one key, skips
// what is already reported as broken, and goes on after a fault.
func (l *loader) check(p *Pipeline) {
	l.checkCatalog(p)
	l.checkStores(p)
	l.checkFolders(p)
	l.checkKafka(p)
	l.checkIngest(p)
	l.checkNames(p)
	inherit(p)
	for i := range p.Queries {
		l.checkQuery(p, i)
	}
	l.checkTogether(p)
	l.checkJobs(p)
	l.checkStatus(p)
	if len(p.Ingest) == 0 && len(p.Queries) == 0 && len(l.faults) == 0 {
		l.faultKey("", "nothing to run: give ingest or queries")
	}
}

// checkFolders keeps what is not a table out of the warehouse: orphan removal
// deletes files there that no table knows.
func (l *loader) checkFolders(p *Pipeline) {
	type folder struct{ key, path string }
	var all []folder
	add := func(key, path string) {
		if path != "" {
			all = append(all, folder{key, path})
		}
	}
	add("checkpointLocation", p.CheckpointLocation)
	if p.Kafka != nil && p.Kafka.Embedded != nil {
		add("kafka.embedded.dataDir", p.Kafka.Embedded.DataDir)
	}
	for i, q := range p.Queries {
		key := fmt.Sprintf("queries[%d].checkpointLocation", i)
		if _, own := l.places[key]; own {
			add(key, q.CheckpointLocation)
		}
	}
	for i, in := range p.Ingest {
		key := fmt.Sprintf("ingest[%d].position", i)
		if _, own := l.places[key]; own {
			add(key, in.Position)
		}
	}
	for _, f := range all {
		if p.Warehouse != "" && (inside(f.path, p.Warehouse) || inside(p.Warehouse, f.path)) {
			l.faultKey(f.key, "%s and the warehouse lie inside each other; table care would remove files that are no table's: give each its own folder", f.key)
		}
	}
}

// inside reports whether path is folder or lies in it.
func inside(path, folder string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

func (l *loader) checkKafka(p *Pipeline) {
	need := ""
	switch {
	case len(p.Ingest) > 0:
		need = "ingest"
	default:
		for i, q := range p.Queries {
			if q.From.Kafka != nil {
				need = fmt.Sprintf("queries[%d].from.kafka", i)
				break
			}
		}
	}
	k := p.Kafka
	if k == nil {
		if need != "" && !l.isBroken("kafka") {
			l.faultKey(need, "%s needs a broker: add kafka with bootstrapServers or embedded", need)
		}
		return
	}
	switch {
	case l.isBroken("kafka.bootstrapServers") || l.isBroken("kafka.embedded"):
	case k.Embedded != nil && len(k.BootstrapServers) > 0:
		l.faultKey("kafka.embedded", "kafka has both bootstrapServers and embedded; keep one")
	case k.Embedded == nil && len(k.BootstrapServers) == 0:
		l.faultKey("kafka", "kafka needs bootstrapServers or embedded")
	}
	for i, b := range k.BootstrapServers {
		if _, port, err := net.SplitHostPort(b); err != nil || !isPort(port, 1) {
			key := "kafka.bootstrapServers"
			if _, ok := l.places[fmt.Sprintf("%s[%d]", key, i)]; ok {
				key = fmt.Sprintf("%s[%d]", key, i)
			}
			if !l.isBroken(key) {
				l.faultKey(key, "bootstrapServers: entry %d is not host:port", i+1)
			}
		}
	}
	l.checkSecurity(k)
	seen := map[string]bool{}
	for i, t := range k.Topics {
		key := fmt.Sprintf("kafka.topics[%d].name", i)
		if t.Name != "" && seen[t.Name] {
			l.faultKey(key, "topic %q is listed twice", t.Name)
		}
		seen[t.Name] = true
		if k.Embedded != nil && t.ReplicationFactor > 1 {
			l.faultKey(fmt.Sprintf("kafka.topics[%d].replicationFactor", i), "the embedded broker is a single one; replicationFactor has to be 1")
		}
	}
}

// checkSecurity checks tls and sasl.
func (l *loader) checkSecurity(k *Kafka) {
	if k.Embedded != nil {
		for key, set := range map[string]bool{"kafka.tls": k.TLS != nil, "kafka.sasl": k.SASL != nil} {
			if set {
				l.faultKey(key, "the embedded broker listens on the loopback interface without %s; remove it", strings.TrimPrefix(key, "kafka."))
			}
		}
		return
	}
	l.checkTLS(k.TLS, "kafka.tls")
	l.checkSASL(k)
}

// checkTLS checks the files of a client's tls.
func (l *loader) checkTLS(t *TLS, key string) {
	if t == nil {
		return
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		l.faultKey(key, "tls: certFile and keyFile go together")
	}
	for name, path := range map[string]string{"caFile": t.CAFile, "certFile": t.CertFile, "keyFile": t.KeyFile} {
		l.mustExist(key+"."+name, path)
	}
	if t.InsecureSkipVerify {
		l.warn(key+".insecureSkipVerify", "insecureSkipVerify: the server's certificate is not checked")
	}
}

// mustExist reports a file that is named and not there.
func (l *loader) mustExist(key, path string) {
	if path == "" || l.isBroken(key) {
		return
	}
	if st, err := os.Stat(path); err != nil {
		l.faultKey(key, "no such file: %s", path)
	} else if st.IsDir() {
		l.faultKey(key, "%s is a folder, not a file", path)
	}
}

func isPort(s string, least int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= least && n <= 65535
}

func (l *loader) checkIngest(p *Pipeline) {
	positions, transactions := map[string]string{}, map[string]string{}
	for i := range p.Ingest {
		in := &p.Ingest[i]
		key := fmt.Sprintf("ingest[%d]", i)
		if in.Topic != "" && in.Topic == in.DeadLetterTopic {
			l.faultKey(key+".deadLetterTopic", "deadLetterTopic is the same as topic: a dead letter would be read as an event")
		}
		l.checkSchema(in, key+".contract.schema")
		l.checkHeaders(in, key)
		if in.Position != "" {
			// The folder is locked against a second ingestion, so it is the folder
			// that must not be shared.
			folder := filepath.Dir(in.Position)
			if other, dup := positions[folder]; dup {
				l.faultKey(key+".position", "position lies in the same folder as that of %s; each stream needs a folder of its own", other)
			}
			positions[folder] = in.Name
		}
		if other, dup := transactions[in.TransactionalID]; dup && in.Name != "" {
			l.faultKey(key+".transactionalId", "transactionalId is the same as that of %s; they would fence each other", other)
		}
		transactions[in.TransactionalID] = in.Name
	}
	for i, in := range p.Ingest {
		for _, other := range p.Ingest {
			if in.DeadLetterTopic != "" && in.DeadLetterTopic == other.Topic && in.Name != other.Name {
				l.faultKey(fmt.Sprintf("ingest[%d].deadLetterTopic", i), "deadLetterTopic %q is the topic of ingest %s", in.DeadLetterTopic, other.Name)
			}
		}
	}
}

// checkSchema resolves contract.schema.
func (l *loader) checkSchema(in *Ingest, key string) {
	s := in.Contract.Schema
	switch {
	case s == "" || l.isBroken(key) || s == BuiltinRecentChange:
	case strings.HasPrefix(s, "builtin:"):
		l.faultKey(key, "schema: no built-in contract of that name; there is %s", BuiltinRecentChange)
	default:
		abs, err := l.path(s)
		if err != nil {
			l.faultKey(key, "schema %s", err)
			return
		}
		in.Contract.Schema = abs
		l.mustExist(key, abs)
	}
}

// reserved are names that mean something else where query names are used.
var reserved = []string{"ingest"}

// checkNames: a name is a folder, a marker and a metric label, on file systems
// that may not tell upper from lower case.
func (l *loader) checkNames(p *Pipeline) {
	seen := map[string]int{}
	for i, q := range p.Queries {
		key := fmt.Sprintf("queries[%d].name", i)
		if q.Name == "" || l.isBroken(key) {
			continue
		}
		if slices.Contains(reserved, strings.ToLower(q.Name)) {
			l.faultKey(key, "the name %q is taken: crash points and metrics use it for ingestion", q.Name)
		}
		folded := strings.ToLower(q.Name)
		if first, dup := seen[folded]; dup {
			l.faultKey(key, "query name %q is used twice (first in line %d)", q.Name, l.places.nearest(fmt.Sprintf("queries[%d].name", first)).line)
			continue
		}
		seen[folded] = i
	}
	ingests := map[string]bool{}
	for i, in := range p.Ingest {
		if in.Name != "" && ingests[strings.ToLower(in.Name)] {
			l.faultKey(fmt.Sprintf("ingest[%d].name", i), "ingest name %q is used twice", in.Name)
		}
		ingests[strings.ToLower(in.Name)] = true
	}
}

// statusTokenMin is what a token needs before it may guard an address that
// others reach.
const statusTokenMin = 16

func (l *loader) checkStatus(p *Pipeline) {
	const key = "status.listen"
	_, p.Status.Given = l.places[key]
	s := p.Status.Listen
	if s == "" || s == ListenNone || l.isBroken(key) {
		return
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || !isPort(port, 0) {
		l.faultKey(key, "listen is neither host:port nor none")
		return
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return
	}
	if !l.isBroken("status.token") && len(p.Status.Token.Reveal()) < statusTokenMin {
		l.faultKey(key, "listen is not a loopback address: set status.token to at least %d characters", statusTokenMin)
	}
}
