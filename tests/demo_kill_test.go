package tests

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// demoSummary is what `weir demo --output json` prints.
type demoSummary struct {
	Events             int64 `json:"events"`
	Published          int64 `json:"published"`
	Canaries           int64 `json:"canaries"`
	ContractViolations int64 `json:"contract_violations"`
	KafkaRecords       int64 `json:"kafka_records"`
	BronzeRows         int64 `json:"bronze_rows"`
	SilverRows         int64 `json:"silver_rows"`
	Duplicates         int64 `json:"duplicates"`
	Late               int64 `json:"late"`
	DeadLetters        int64 `json:"dead_letters"`
}

// counted is what the Python readers print.
type counted struct {
	Rows            int64 `json:"rows"`
	DistinctOffsets int64 `json:"distinct_offsets"`
	DistinctIDs     int64 `json:"distinct_event_ids"`
}

// TestDemoKilledFiveTimesEndsWithTheCountsOfAnUndisturbedRun kills the demo at
// seeded moments, each while a named stage had work in flight: at least one
// each in ingest, bronze and silver. Then PyIceberg and DuckDB count.
func TestDemoKilledFiveTimesEndsWithTheCountsOfAnUndisturbedRun(t *testing.T) {
	weirBin(t)
	python(t)
	const events = 50000
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("WEIR_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = v
	}
	t.Logf("seed %d (WEIR_SEED repeats it)", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	data := t.TempDir()
	args := []string{"demo", "--data", data, "--events", strconv.Itoa(events), "--once", "--rate", "4000",
		"--listen", "none", "--seed", "7", "--output", "json"}

	// The stages to be caught in flight, in a seeded order; the last two are
	// free.
	stages := []string{"ingest", "bronze", "silver"}
	rng.Shuffle(len(stages), func(i, j int) { stages[i], stages[j] = stages[j], stages[i] })
	stages = append(stages, stages[rng.IntN(3)], stages[rng.IntN(3)])
	for i, stage := range stages {
		p := start(t, nil, args...)
		moment := time.Duration(300+rng.IntN(1200)) * time.Millisecond
		killInFlight(t, p, data, stage, moment)
		t.Logf("kill %d landed in %s", i+1, stage)
	}
	out, errs, code := weir(t, nil, args...)
	if code != 0 {
		t.Fatalf("the last run: exit %d\n%s\n%s", code, out, tail(errs))
	}
	var got demoSummary
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	var whole demoSummary
	mustJSON(t, &whole, "demo", "--data", t.TempDir(), "--events", strconv.Itoa(events), "--once",
		"--listen", "none", "--seed", "7")
	if got.SilverRows+got.Late != whole.SilverRows+whole.Late {
		t.Errorf("silver + late: %d + %d after five kills, %d + %d undisturbed", got.SilverRows, got.Late, whole.SilverRows, whole.Late)
	}
	if got.Events != events || got.Canaries+got.ContractViolations+got.Published != events {
		t.Errorf("events do not add up: %+v", got)
	}
	if got.BronzeRows != got.KafkaRecords {
		t.Errorf("bronze has %d rows, Kafka %d records", got.BronzeRows, got.KafkaRecords)
	}
	for _, script := range []string{"count_iceberg.py", "count_duckdb.py"} {
		var bronze, silver counted
		reader(t, &bronze, script, "--catalog", filepath.Join(data, "catalog.db"), "--table", "bronze.recentchange")
		reader(t, &silver, script, "--catalog", filepath.Join(data, "catalog.db"), "--table", "silver.edits")
		if bronze.Rows != got.KafkaRecords || bronze.DistinctOffsets != got.KafkaRecords {
			t.Errorf("%s: bronze %d rows, %d distinct offsets; Kafka holds %d records", script, bronze.Rows, bronze.DistinctOffsets, got.KafkaRecords)
		}
		if silver.Rows != silver.DistinctIDs || silver.Rows+got.Late != whole.SilverRows+whole.Late {
			t.Errorf("%s: silver %d rows, %d distinct ids, %d late; the generator made %d", script, silver.Rows, silver.DistinctIDs, got.Late, whole.SilverRows+whole.Late)
		}
	}
}

// killInFlight waits until the moment and then for the stage to have work in
// flight, kills the process with −9, and checks that the kill landed there.
func killInFlight(t *testing.T, p *process, data, stage string, moment time.Duration) {
	t.Helper()
	deadline := time.Now().Add(patience)
	time.Sleep(moment)
	for time.Now().Before(deadline) {
		if !p.running() {
			t.Fatalf("the run ended before the kill in %s\n%s", stage, tail(p.errs.String()))
		}
		if stage == "ingest" {
			// In flight: something has been published, not all of it.
			before := positionStamp(data)
			time.Sleep(50 * time.Millisecond)
			if after := positionStamp(data); after == before || after.IsZero() {
				continue
			}
			p.kill9()
			return
		}
		if !inFlight(data, stage) {
			time.Sleep(time.Millisecond)
			continue
		}
		p.kill9()
		if inFlight(data, stage) {
			return
		}
		// The batch was committed between the look and the kill: not counted,
		// start again and try once more.
		p = start(t, nil, p.cmd.Args[1:]...)
		time.Sleep(moment)
	}
	t.Fatalf("%s never had work in flight", stage)
}

// positionStamp is when the resume position was last saved.
func positionStamp(data string) time.Time {
	var newest time.Time
	entries, err := os.ReadDir(filepath.Join(data, "ingest"))
	if err != nil {
		return newest
	}
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && fi.ModTime().After(newest) {
			newest = fi.ModTime()
		}
	}
	return newest
}
