package status

// advice is what to do when something is red. Its id is a Reason's code, or
// failed-<class> for a class of errors that needs its own words.
type advice struct {
	ID, Title string
	Meaning   string
	Steps     []string
}

// AdviceID is where the page explains the reason.
func (v *view) AdviceID(r Reason) string {
	if r.Code == CodeFailed {
		for _, q := range v.M.Queries {
			if q.Name != r.Subject || q.State != Failed {
				continue
			}
			for _, a := range adviceList {
				if a.ID == CodeFailed+"-"+q.ErrorClass {
					return a.ID
				}
			}
		}
	}
	return r.Code
}

var adviceList = []advice{
	{CodeStalled, "A query is stalled", "It has records to read and has committed nothing for three trigger intervals and 30 s.", []string{
		"Look at the last batch: which phase took long? A long read points at the broker, a long commit at the catalog or another writer.",
		"weir status FILE says whether a batch is planned and not committed.",
		"Restarting is always safe: the batch is run again with the same offsets, or found committed.",
	}},
	{CodeUnreachable, "The lag is unknown", "The broker or an upstream table has not answered for 30 s.", []string{
		"Check that the broker runs and that its advertised listeners can be reached from here.",
		"The queries wait and go on by themselves; past their deadline they stop with exit code 8, which is safe to restart.",
	}},
	{CodeStarting, "A query is starting", "It waits for its lock, decides where to go on, and claims its tables.", []string{
		"A start after a crash may wait one lease (10 s) for the instance before it.",
		"Exit code 5 means that another instance is alive: stop it, or start with --take-over.",
		"Rebuilding state from a table takes as long as reading the table; an alert says that it happens.",
	}},
	{CodeFailed, "A query or an ingestion has failed", "The process ends with the error's exit code; the message names the thing and the way out.", []string{
		"Exit codes 1, 6 and 8 are safe to restart, by a supervisor too. Nothing that was committed is lost, nothing is committed twice.",
		"Codes 2, 3, 5, 7 and 9 need a decision first; docs/operations.md has a paragraph for each.",
	}},
	{CodeFailed + "-source-changed", "The source is another one, or records are gone", "Offsets that were not read yet were deleted, or topic, cluster or table were made anew (exit code 3).", []string{
		"Records gone by retention: failOnDataLoss: false goes on at the log start and records the loss.",
		"A topic made anew holds another stream. Give the query another name, or weir checkpoint reset FILE QUERY --yes, which delivers again.",
	}},
	{CodeFailed + "-fenced", "Another instance has taken over", "A newer start claimed the query; this one can commit no more (exit code 5).", []string{
		"One of the two is superfluous: stop it. No row was lost or doubled.",
	}},
	{CodeFailed + "-checkpoint", "Checkpoint and table contradict each other", "The checkpoint is corrupt, or the table was rolled back or replaced (exit code 7).", []string{
		"weir checkpoint show FILE QUERY shows both sides.",
		"A table rolled back on purpose: weir checkpoint adopt FILE QUERY --from-snapshot.",
		"Keep the checkpoint folder until it is settled; it is the evidence.",
	}},
	{"alert", "An alert: adopted, restarted, rebuilt, lost", "Something happened that a person should know of; the pipeline goes on.", []string{
		"Adopted: the checkpoint was missing or old, the query went on from the table's own memory. Find out who removed it.",
		"Restarted: onLostCheckpoint: restart made a new lineage. Rows may be there twice: run weir audit FILE.",
		"Records lost by retention: the query was down, or too slow, for longer than the topic keeps its records.",
	}},
	{"dead-letters", "Dead letters grow", "Records that cannot be used are set aside with a reason; the stream goes on.", []string{
		"Look at the samples: one reason and one producer mean a changed producer, many reasons mean bad input.",
		"Correct the contract or the columns, then replay. The records stay in the topic and in bronze as they came.",
	}},
	{"late", "Many late or duplicate rows", "Late rows came after the watermark; duplicates carry an id that was seen within it. Both are counted and stay in bronze.", []string{
		"Late rows after a long stop are ordinary. If they come all day, raise watermark.delay; state grows with it.",
		"Duplicates are ordinary with at-least-once ingestion. Many of them mean many reconnects.",
	}},
}
