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
	{CodeFailed + "-runtime", "An unexpected error", "Exit code 1: an error of no other class.", []string{
		"Restarting is safe, by a supervisor too: what was committed stays, what was not is run again with the same offsets.",
		"If the same error comes back, start with --log-level debug; the message names what was being done to what.",
	}},
	{CodeFailed + "-configuration", "Something is configured wrongly", "Exit code 2: a setting, a missing right or a store that is not there. Nothing was read.", []string{
		"The message names the setting and its place. weir validate FILE --connect lists every fault at once, without moving data.",
		"Do not let a supervisor restart it: it fails in the same way until the file, the right or the store is mended.",
	}},
	{CodeFailed + "-mismatch", "The counts do not match", "Exit code 4: a handler, an audit or a proof counted other rows than there are.", []string{
		"For a foreachBatch handler: it returned without an error and wrote another number of rows. Mend the handler; the batch comes again under the same id.",
		"weir audit FILE names missing, extra and doubled offsets.",
	}},
	{CodeFailed + "-commit-unknown", "The outcome of a commit is unknown", "Exit code 6: the catalog did not answer in time, so the commit may have landed or not.", []string{
		"Restart: the next start reads the table and finds out. It neither repeats nor loses the batch.",
		"If it comes often, look at the catalog: its latency is the commit phase of the chart above.",
	}},
	{CodeFailed + "-unreachable", "A store, catalog or broker stayed away", "Exit code 8: it was waited for until the deadline.", []string{
		"Restarting is safe, as often as you like. The message names the address; check it from this machine.",
		"weir validate FILE --connect tries each of them and says which one answers.",
	}},
	{CodeFailed + "-schema-conflict", "Rows and table do not fit together", "Exit code 9: a type that the table cannot take, or more dead letters than the limit allows.", []string{
		"weir dlq list FILE QUERY shows the reasons; a changed producer is the usual one.",
		"Correct the columns or the contract, or raise the limit; then start again. weir dlq replay brings back what parses by then.",
	}},
	{CodeRetrying, "A store outside does not answer", "The query has stopped at the store that it writes to and starts again by itself, with growing pauses. The others go on.", []string{
		"Nothing is lost: the batch is planned and comes again under the same id when the store is back.",
		"weir validate FILE --connect says whether it can be reached and written to.",
		"Watch the topic's retention: records must not be gone before the store is back.",
	}},
	{CodeCheck, "A check has failed", "What the check looks at is not as it should be, or the check itself could not be run.", []string{
		"weir checks run FILE CHECK runs it again; failing rows stand in ops.checks (samples).",
		"Duplicates or completeness: run weir audit FILE before anything else; it counts against Kafka itself.",
		"Freshness: look at lag and commit time above. Accepted values or not-null: a changed producer.",
	}},
	{CodeJob, "A job has failed", "Its retries are used up; the next start comes as scheduled.", []string{
		"The error is in the table of jobs and in ops.runs. A command's last words are kept with it.",
		"Run it by hand: weir gold build FILE, weir checks run FILE, or the command.",
	}},
	{CodeModel, "A model of gold has failed", "Its SQL could not be run; its table keeps what was published before, and so do those that read it.", []string{
		"weir gold run FILE --select MODEL shows the error with the statement.",
		"A source that changed its columns is the usual cause. weir sql FILE \"DESCRIBE …\" shows them.",
	}},
	{CodeModelTest, "A test of a model does not pass", "The new result was not published: readers see the one before.", []string{
		"weir gold test FILE names the failing rows.",
		"If the rows are right and the test is not, correct the test. Otherwise look for them in silver: weir sql FILE takes SQL and snapshot ids.",
	}},
	{CodeCare, "The care of a table has failed", "Small files, old snapshots or unreferenced files stay for now. The stream goes on, reading gets slower by and by.", []string{
		"It is tried again by itself; the error names what could not be read or written.",
		"By hand, also while the pipeline runs: weir compact, weir expire and weir orphans --dry-run FILE TABLE.",
	}},
	{CodeProofViolated, "The last proof found a violation", "A scenario of weir prove counted other rows than it must.", []string{
		"The report keeps the folder of the scenario: tables, checkpoint and log. Its reason names offsets and files.",
		"Run it alone, with the same seed: weir prove NAME --seed N. If it is violated again, keep the folder and report a defect.",
		"weir audit FILE counts this pipeline's own tables.",
	}},
	{CodeProofInconclusive, "The last proof shows nothing either way", "A fault did not land where it was meant to, on a slow machine for example.", []string{
		"Run it again, with --resume only what was not proved.",
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
