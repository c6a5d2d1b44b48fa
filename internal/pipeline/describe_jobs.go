package pipeline

import "maps"

func init() { maps.Copy(descriptions, jobDescriptions) }

// jobDescriptions are the descriptions of gold, checks, jobs and alerts.
var jobDescriptions = map[string]string{
	"Pipeline.gold":    "SQL models over the tables, run by DuckDB.",
	"Pipeline.checks":  "Assertions about tables, run by jobs and by `weir checks run`.",
	"Pipeline.jobs":    "Work that `weir run` does beside the queries: gold, checks, commands.",
	"Pipeline.alerts":  "Who hears of checks and jobs that fail.",
	"Pipeline.lineage": "An OpenLineage server that hears of every batch and every model of gold. Without this section, the variables `OPENLINEAGE_URL`, `…_ENDPOINT`, `…_NAMESPACE` and `…_API_KEY` name one; `OPENLINEAGE_DISABLED=true` switches both off.",

	"Gold.project":     "Folder of the models, in the shape of a dbt project, or `builtin:wikimedia`.",
	"Gold.schema":      "Namespace of the published tables.",
	"Gold.database":    "A DuckDB file that gets a copy of the published tables after each run. Default: none.",
	"Gold.vars":        "Variables of the models, over those of `dbt_project.yml`.",
	"Gold.threads":     "Threads of DuckDB. Default: one per core.",
	"Gold.memoryLimit": "Memory of DuckDB, such as `2GB`; it spills to disk beyond. Checks have the same.",

	"Check.name":           "Name of the check.",
	"Check.table":          "The table. Not needed by `reconciliation` and `sql`, which name theirs.",
	"Check.severity":       "`error` fails the job and the command; `warn` is only reported.",
	"Check.where":          "Condition in SQL that limits the rows.",
	"Check.duplicates":     "No two rows agree in these columns.",
	"Check.notNull":        "None of these columns is null.",
	"Check.acceptedValues": "A column holds listed values only.",
	"Check.freshness":      "The newest value of a column is not older than that.",
	"Check.completeness":   "The table has what the topic has: the query's position is at its end, less `maxLag`, and no offset before it is there twice.",
	"Check.reconciliation": "Two numbers agree. Where one comes from a table of gold, the other tables are read at the snapshots that it was made from.",
	"Check.rowCount":       "The number of rows, by itself or against the last run of the check.",
	"Check.sql":            "A query whose rows are failures.",

	"AcceptedValues.column": "The column.",
	"AcceptedValues.values": "What it may hold, besides nulls.",

	"Freshness.column": "A column of type `timestamptz`.",
	"Freshness.maxAge": "The greatest age of its newest value.",

	"Completeness.topic":  "The topic that the table's query reads, directly or through other tables.",
	"Completeness.maxLag": "How many records of the topic may be missing yet.",

	"Reconciliation.left":      "A query that gives one number.",
	"Reconciliation.right":     "Another one.",
	"Reconciliation.tolerance": "The greatest difference between them.",

	"RowCount.min":              "The least number of rows.",
	"RowCount.max":              "The greatest; 0 is no bound.",
	"RowCount.maxDropPercent":   "How many percent fewer rows than at the last run are too few, those aside that weir erase has taken since; 0 is no bound.",
	"RowCount.maxGrowthPercent": "How many percent more are too many; 0 is no bound.",

	"Job.name":        "Name of the job.",
	"Job.gold":        "What to do with gold: `run` it, `build` it (run, and publish only what passes its tests) or `test` what is published.",
	"Job.select":      "Only these models, and those upstream of them.",
	"Job.checks":      "The checks to run, or `all`.",
	"Job.command":     "A command of the shell; it fails with any exit code but 0.",
	"Job.cron":        "When to start: five fields (minute, hour, day, month, weekday) or `@hourly`, `@daily`, `@weekly`, `@monthly`.",
	"Job.timeZone":    "Time zone of `cron`, such as `Europe/Zurich`. Default: UTC.",
	"Job.every":       "Interval between starts.",
	"Job.afterCommit": "Start after a batch of one of these queries that wrote rows.",
	"Job.afterJob":    "Start after a run of one of these jobs that succeeded.",
	"Job.minInterval": "The least time between starts that commits or other jobs ask for; what is asked for meanwhile becomes one start.",
	"Job.catchUp":     "Starts that were missed while nothing ran: `skip` them, make up for all of them `once`, or run `all` one by one (100 at most).",
	"Job.retries":     "How often a failed run is tried again. A fault in the configuration is not.",
	"Job.backOff":     "Pause before the first retry; it doubles with each.",
	"Job.timeout":     "When a try is given up.",

	"Alerts.webhook":  "URL that gets a POST with the alert as JSON. Never printed.",
	"Alerts.command":  "A command of the shell that gets the alert as JSON on standard input.",
	"Alerts.severity": "`error`: failed jobs and checks of that severity; `warn`: warnings too.",
	"Alerts.timeout":  "How long an alert may take; it is tried three times.",

	"Lineage.url":       "The server's URL, such as `http://marquez:5000`.",
	"Lineage.endpoint":  "The path below it that takes events.",
	"Lineage.namespace": "Namespace of the jobs; a query is the job `<pipeline>.<query>`, a model `<pipeline>.<schema>.<model>`.",
	"Lineage.apiKey":    "Sent as a bearer token. Never printed.",
	"Lineage.timeout":   "How long a request may take; an event is tried three times.",

	"Ops.runsTable":   "The table of runs of jobs. Default: `ops.runs` where there are jobs.",
	"Ops.checksTable": "The table of results of checks. Default: `ops.checks` where there are checks.",
}
