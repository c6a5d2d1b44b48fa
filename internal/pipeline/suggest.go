package pipeline

import (
	"fmt"
	"strings"
)

// foreign are the words that other tools use for one of our keys.
var foreign = map[string]string{
	"subscribe":               "topics",
	"subscribepattern":        "topicPattern",
	"assign":                  "partitions",
	"kafka.bootstrap.servers": "bootstrapServers",
	"bootstrap.servers":       "bootstrapServers",
	"brokers":                 "bootstrapServers",
	"group.id":                "groupId",
	"kafka.group.id":          "groupId",
	"queryname":               "name",
	"checkpoint":              "checkpointLocation",
	"withwatermark":           "watermark",
	"dropduplicates":          "dropDuplicatesWithinWatermark",
	"deduplicate":             "dropDuplicatesWithinWatermark",
	"where":                   "filter",
	"partitionedby":           "partitionBy",
	"dlq":                     "deadLetter",
	"sink":                    "to",
	"source":                  "from",
	"threshold":               "delay",
	"delaythreshold":          "delay",
	"interval":                "processingTime",
	"streams":                 "queries",
	"user":                    "username",
}

// unsupported are words that a user may rightly expect and that this build
// does not have: by struct and key.
var unsupported = map[string]string{
	"Trigger.continuous":   "continuous mode is not supported: Weir plans micro-batches; use processingTime",
	"To.foreachBatch":      "foreachBatch calls a Go function: use the Go package weir",
	"From.sse":             "a query reads kafka or a table; a stream of server-sent events goes through ingest first",
	"Query.outputMode":     "outputMode is always append; remove the key",
	"Query.sessions":       "sessions are an aggregate: aggregate: [{session: {gap: 30m}, …}]",
	"Pipeline.schedules":   "schedules are those of jobs",
	"Pipeline.maintenance": "table maintenance is set with a query's care",
}

// unknownKey is the message for a key that a struct does not have.
func unknownKey(structName, key string, fields []field) string {
	if why, ok := unsupported[structName+"."+key]; ok {
		return why
	}
	var known []string
	for _, f := range fields {
		known = append(known, f.key)
	}
	if s := suggest(key, known); s != "" {
		return fmt.Sprintf("unknown key %q; did you mean %q?", clip(key), s)
	}
	return fmt.Sprintf("unknown key %q; known here: %s", clip(key), strings.Join(known, ", "))
}

// notOneOf is the message for a word outside an enumeration.
func notOneOf(structName, key string, s scalar, words []string) string {
	if why, ok := unsupported[structName+"."+key+"="+strings.ToLower(s.raw)]; ok {
		return fmt.Sprintf("%s %s is %s", key, s.shown(), why)
	}
	msg := fmt.Sprintf("%s: %s is not one of %s", key, s.shown(), strings.Join(words, ", "))
	if !s.interpolated {
		if w := suggest(s.raw, words); w != "" {
			msg += fmt.Sprintf("; did you mean %q?", w)
		}
	}
	return msg
}

// suggest gives the closest of the known words, empty where none is close.
func suggest(word string, known []string) string {
	lower := strings.ToLower(word)
	if f, ok := foreign[lower]; ok {
		for _, k := range known {
			if k == f {
				return k
			}
		}
	}
	squash := strings.NewReplacer("_", "", "-", "", ".", "", " ", "")
	best, bestAt := "", 1000
	for _, k := range known {
		d := distance(squash.Replace(lower), squash.Replace(strings.ToLower(k)))
		if d < bestAt {
			best, bestAt = k, d
		}
	}
	if bestAt <= max(1, min(len(best), len(word))/3) {
		return best
	}
	return ""
}

// distance is the number of edits between two words (swaps count as one).
func distance(a, b string) int {
	const wordMax = 64
	if len(a) > wordMax || len(b) > wordMax {
		return 1000
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
