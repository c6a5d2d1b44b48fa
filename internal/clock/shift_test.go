package clock

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAClockIsShiftedByAFileThatSaysSoAndByNothingElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shift")
	if _, err := readShift(path); err == nil {
		t.Error("a file that is not there is no shift")
	}
	for text, want := range map[string]time.Duration{
		ShiftMark + "-30m\n": -30 * time.Minute, ShiftMark + "3h": 3 * time.Hour, "3h": 0, ShiftMark + "soon": 0, "": 0,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := readShift(path)
		if d != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %s, %v; want %s", text, d, err, want)
		}
	}
}

func TestAnOrdinaryProcessHasTheMachinesClock(t *testing.T) {
	if os.Getenv(ShiftEnv) != "" {
		t.Skip("this process runs in a scenario")
	}
	before := time.Now().Add(-time.Second)
	if now := (System{}).Now(); now.Before(before) || now.After(before.Add(time.Minute)) {
		t.Errorf("the clock says %s, the machine %s", now, before)
	}
}
