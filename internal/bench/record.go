package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/prove"
)

// measurement is one run of something that is measured.
type measurement struct {
	name string
	run  int
}

// records are the results that need not be measured again.
type records map[measurement][]Result

// recordLine is a line of the file of records: the results of one measurement.
type recordLine struct {
	At          string   `json:"at"`
	Measurement string   `json:"measurement"`
	Run         int      `json:"run"`
	Build       string   `json:"build"`
	Settings    string   `json:"settings"`
	Results     []Result `json:"results"`
	Machine     Machine  `json:"machine"`
}

// settings names what a result depends on beside the binary and the machine.
func (b *bench) settings() string {
	return fmt.Sprintf("rows=%d partitions=%d max-offsets=%d trigger=%s seconds=%d kills=%d seed=%d broker=%t,%v quick=%t",
		b.o.Rows, b.o.Partitions, b.o.MaxOffsets, b.o.Trigger, b.o.Seconds, b.o.Kills, b.o.Seed, b.o.KafkaScript != "", b.o.Kafka, b.o.quick)
}

// build names the content of the binary.
func (b *bench) build() (string, error) {
	if b.digest != "" {
		return b.digest, nil
	}
	sum, err := prove.Digest(b.o.Binary)
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "the binary under test")
	}
	b.digest = sum
	return sum, nil
}

// readRecords takes from the file of records, where it is to be gone on with, what
// this binary gave under these settings.
func (b *bench) readRecords() error {
	b.recorded = records{}
	if b.o.Record == "" || !b.o.Resume {
		return nil
	}
	text, err := os.ReadFile(b.o.Record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failure.Wrap(failure.Config, err, "the file of records")
	}
	build, err := b.build()
	if err != nil {
		return err
	}
	for n, line := range bytes.Split(bytes.TrimSpace(text), []byte{'\n'}) {
		var l recordLine
		if err := json.Unmarshal(line, &l); err != nil {
			return failure.Wrap(failure.Config, err, "line %d of %s", n+1, b.o.Record).WithHint("remove the line, or name another --record")
		}
		if l.Build == build && l.Settings == b.settings() {
			b.recorded[measurement{l.Measurement, l.Run}] = l.Results
		}
	}
	if n := len(b.recorded); n > 0 {
		b.say("%d measurements stand in %s already", n, b.o.Record)
	}
	return nil
}

// complete gives the results of a measurement of which every run is recorded.
func (r records) complete(name string, repeat int) (out []Result) {
	for run := 1; run <= repeat; run++ {
		got := r[measurement{name, run}]
		if got == nil {
			return nil
		}
		out = append(out, got...)
	}
	return out
}

// record appends a measurement's results to the file of records.
func (b *bench) record(m measurement, results []Result) error {
	if b.o.Record == "" {
		return nil
	}
	build, err := b.build()
	if err != nil {
		return err
	}
	line, err := json.Marshal(recordLine{b.o.Clock.Now().Format("2006-01-02T15:04:05Z"), m.name, m.run, build, b.settings(), results, machineOf()})
	if err != nil {
		return fmt.Errorf("record %s: %w", m.name, err)
	}
	f, err := os.OpenFile(b.o.Record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return failure.Wrap(failure.Config, err, "the file of records")
	}
	_, err = f.Write(append(line, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return failure.Wrap(failure.Config, err, "the file of records")
	}
	return nil
}
