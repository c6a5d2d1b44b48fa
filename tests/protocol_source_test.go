package tests

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestARecreatedTopicStopsInsteadOfMixingTwoTopics(t *testing.T) {
	l := newLab(t, 300)
	l.run(exitOK)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := l.admin().DeleteTopic(ctx, labTopic); err != nil {
		t.Fatal(err)
	}
	if _, err := l.admin().CreateTopic(ctx, 2, 1, nil, labTopic); err != nil {
		t.Fatal(err)
	}
	before := l.pointer(labBronze)
	_, errs := l.run(exitSourceChanged)
	if !strings.Contains(errs, "created again") || l.pointer(labBronze) != before {
		t.Errorf("the cause is not named, or the table was written to\n%s", tail(errs))
	}
	l.connect()
	l.produce(400)
	l.run(exitSourceChanged)
	if l.pointer(labBronze) != before {
		t.Error("the table was written to")
	}
}

func TestAnotherClusterUnderTheSameAddressStops(t *testing.T) {
	l := newLab(t, 300)
	l.run(exitOK)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, digits, _ := strings.Cut(l.broker.Bootstrap(), ":")
	port, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.broker.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	l.remove(filepath.Join(l.dir, "kafka"))
	l.startBroker(port)
	l.produce(500)
	before := l.pointer(labBronze)
	_, errs := l.run(exitSourceChanged)
	if !strings.Contains(errs, "cluster") || l.pointer(labBronze) != before {
		t.Errorf("the cause is not named, or the table was written to\n%s", tail(errs))
	}
}

func TestExpiredRecordsStopUnlessTheQueryMaySkipThem(t *testing.T) {
	l := newLab(t, 300)
	l.run(exitOK)
	l.produce(300)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ends, err := l.admin().ListEndOffsets(ctx, labTopic)
	if err != nil {
		t.Fatal(err)
	}
	cut := ends.Offsets()
	for p, o := range cut[labTopic] {
		o.At -= 50
		cut[labTopic][p] = o
	}
	if _, err := l.admin().DeleteRecords(ctx, cut); err != nil {
		t.Fatal(err)
	}
	_, errs := l.run(exitSourceChanged)
	if !strings.Contains(errs, "failOnDataLoss") {
		t.Errorf("the way out is not named\n%s", tail(errs))
	}
	l.edit("startingOffsets: earliest", "failOnDataLoss: false, startingOffsets: earliest")
	// Killed with the batch planned and not committed: the rerun skips too.
	l.crash("bronze/commit.before:1", "--query", "bronze")
	l.run(exitOK)
	a := l.audit(exitOK)
	if b := a[labBronze]; b.Rows != 400 || b.DistinctOffsets != 400 {
		t.Errorf("bronze: %+v, want the 300 delivered before and the 100 that were left", b)
	}
	// The restart after it resumes, strict again.
	l.edit("failOnDataLoss: false, startingOffsets: earliest", "startingOffsets: earliest")
	l.produce(200)
	l.run(exitOK)
	if b := l.audit(exitOK)[labBronze]; b.Rows != 600 {
		t.Errorf("bronze: %+v", b)
	}
}

func TestPartitionsAddedWhileRunningAreReadFromTheirStart(t *testing.T) {
	l := newLab(t, 300)
	p := start(t, nil, "run", l.file)
	waitFor(t, "the first batches", func() bool { return newest(l.checkpoint("silver", "commits")) >= 0 })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := l.admin().CreatePartitions(ctx, 2, labTopic); err != nil {
		t.Fatal(err)
	}
	l.connect()
	l.partitions = 4
	l.produce(400)
	waitFor(t, "the new partitions", func() bool { return l.committed("silver") == 700 })
	p.stop(exitOK)
	l.run(exitOK)
	l.exact()
}
