package tests

import "testing"

// TestProveShowsTheTrapsOfForeachBatchAndHowTheyAreShut runs the demonstrations
// with real Delta tables and the program as real processes, and kills it at
// every step.
func TestProveShowsTheTrapsOfForeachBatchAndHowTheyAreShut(t *testing.T) {
	p := prove(t, 0, "foreachbatch", "--embedded-only")
	want := map[string]map[string]float64{
		"foreachbatch-broken-append":     {"rows": 6, "distinct_ids": 3, "rows_at_the_crash": 3},
		"foreachbatch-idempotent-append": {"rows": 3, "distinct_ids": 3, "rows_at_the_crash": 3},
		"foreachbatch-reset-trap":        {"rows_before_the_reset": 9, "rows": 9, "exit_code": 0},
		"foreachbatch-reset-shut":        {"rows_before_the_reset": 9, "rows": 10, "exit_code_without_checkpoint": 7, "exit_code_of_another_lineage": 7},
		"foreachbatch-swallowed-error":   {"rows_written_by_it": 2, "rows": 3, "exit_code": 4},
	}
	steps := 0
	for _, s := range p.Scenarios {
		if s.Outcome != "proved" {
			t.Errorf("%s: %s (%s)", s.Name, s.Outcome, s.Reason)
		}
		if want[s.Name] == nil {
			steps++
			if s.Kills != 1 || s.Observed["rows"] != 3.0 {
				t.Errorf("%s: %d kills, %v rows", s.Name, s.Kills, s.Observed["rows"])
			}
		}
		for key, v := range want[s.Name] {
			if s.Observed[key] != v {
				t.Errorf("%s: %s is %v, want %v", s.Name, key, s.Observed[key], v)
			}
		}
		delete(want, s.Name)
	}
	if len(want) > 0 || steps < 10 {
		t.Errorf("%d steps were killed; not shown: %v", steps, want)
	}
}
