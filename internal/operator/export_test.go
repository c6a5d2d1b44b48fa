package operator

import "testing"

// onStore makes the store that the tests' transforms keep their memory in, in
// a folder; nil is memory.
var onStore func(t testing.TB, dir string) func(operatorName string) KeyStore

// OnStore are the tests of behaviour that hold on every store.
var OnStore = []struct {
	Name string
	Test func(*testing.T)
}{
	{"sessions", TestSessionsEqualABatchRecomputationWhateverTheOrderTheCutsAndTheRestarts},
	{"two stages", TestAStageDropsNothingThatTheStageBeforeItEmits},
	{"an end that is reached", TestASessionIsEmittedOnceTheWatermarkHasPassedItsEndAndNotAtIt},
	{"two sessions that touch", TestARowThatTouchesTwoSessionsMakesOneOfThem},
	{"a rebuild that goes back", TestALongSessionIsRebuiltByGoingFurtherBack},
	{"files of before", TestStateOfEarlierVersionsIsRead},
	{"dedup until the delay", TestAKeyIsRememberedUntilTheWatermarkPassesItsTimePlusDelay},
	{"dedup in one batch", TestDuplicatesWithinOneBatchAndRecordAreFound},
	{"ids that resemble", TestIDsThatOnlyResembleAUUIDAreOtherIDs},
	{"keys of several columns", TestKeysOfSeveralColumnsAreNotGlued},
	{"dedup and its files", TestStateLoadedFromSnapshotAndDeltasEqualsTheLiveOne},
	{"sessions behind parsing", TestSessionsBehindParsingCountEveryRowOnceWhateverBecameOfIt},
}

// RunOnStore runs the tests on a store.
func RunOnStore(t *testing.T, make func(t testing.TB, dir string) func(operatorName string) KeyStore) {
	onStore, resumed = make, 0
	defer func() { onStore = nil }()
	for _, c := range OnStore {
		t.Run(c.Name, c.Test)
	}
	if resumed == 0 && !t.Failed() {
		t.Error("no test went on from what the store had kept")
	}
}

// kept moves the memory of a transform to where the tests are to have it.
func kept(t testing.TB, tr Transform, dir string) {
	if onStore == nil {
		return
	}
	KeepIn(tr, onStore(t, dir))
	t.Cleanup(func() {
		if err := Release(tr); err != nil {
			t.Error(err)
		}
	})
}

// tries are fewer where each opens files.
func tries(n int) int {
	if onStore != nil {
		return max(n/30, 2)
	}
	return n
}

func mustBegin(t testing.TB, d *dedup, watermark int64) {
	t.Helper()
	if err := d.begin(watermark); err != nil {
		t.Fatal(err)
	}
}
