package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"strconv"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// urlWait bounds the start of the stream's server.
	urlWait = 20 * time.Second
	// endsEvery is how often the topic's end is asked for.
	endsEvery = 50 * time.Millisecond
)

// ingest measures a stream through the contract into Kafka: the server, the
// ingestion and the broker are three processes on the same cores.
func (b *bench) ingest(ctx context.Context) ([]Result, error) {
	b.say("ingest: %d events", b.o.Rows)
	return b.each(ctx, Ingest, func(int) ([]Result, error) {
		topic, err := b.topic(ctx, Ingest)
		if err != nil {
			return nil, err
		}
		defer b.dropTopic(ctx, topic)
		if _, err := b.kafka.admin.CreateTopic(ctx, 1, 1, nil, topic+"-dlq"); err != nil {
			return nil, failure.Wrap(failure.Unreachable, err, "create topic %s-dlq", topic)
		}
		defer b.dropTopic(ctx, topic+"-dlq")
		return b.ingestOnce(ctx, topic)
	})
}

func (b *bench) ingestOnce(ctx context.Context, topic string) ([]Result, error) {
	server, err := b.start("replay-sse", "replay-sse", "--output", "json", "--listen", "127.0.0.1:0", "--cut-after", "-1s",
		"--events", strconv.FormatInt(b.o.Rows, 10), "--seed", strconv.FormatUint(b.o.Seed, 10),
		"--canaries", "0", "--violations", "0", "--duplicates", "0", "--late", "0")
	if err != nil {
		return nil, err
	}
	defer server.abandon()
	s := b.setup(topic, false)
	defer b.discard(s)
	if s.URL, err = b.urlOf(ctx, server); err != nil {
		return nil, err
	}
	file, err := s.write()
	if err != nil {
		return nil, err
	}
	m, serverCPU := b.meter(), cpuOf(server.cmd.Process.Pid)
	c, err := b.start(Ingest, "ingest", file)
	if err != nil {
		return nil, err
	}
	var first, last time.Time
	var atFirst, rows int64
	for rows < b.o.Rows {
		n, err := b.ends(ctx, topic)
		if err != nil {
			return nil, err
		}
		if n > rows {
			if rows, last = n, b.o.Clock.Now(); first.IsZero() {
				first, atFirst = last, n
			}
		}
		if !c.running() && n < b.o.Rows {
			return nil, failure.New(failure.Mismatch, "ingestion ended with %d of %d events in Kafka: %v\n%s", n, b.o.Rows, c.err, c.tail())
		}
		if err := b.o.Clock.Sleep(ctx, endsEvery); err != nil {
			return nil, err
		}
	}
	serverCPU = cpuOf(server.cmd.Process.Pid) - serverCPU
	if err := c.stop(ctx); err != nil {
		return nil, err
	}
	brokerCPU, others := m.read(c.userAndSys + serverCPU)
	million := float64(b.o.Rows) / 1e6
	return []Result{{
		Name: Ingest, Rows: b.o.Rows, RowsPerSecond: round(float64(rows-atFirst) / last.Sub(first).Seconds()),
		Whole: round(float64(rows) / last.Sub(c.startedAt).Seconds()), CPU: round(c.userAndSys.Seconds() / million),
		PeakRSSMB: round(c.peakMB()), Others: others, BrokerCPU: round(brokerCPU.Seconds() / million), Seconds: round(last.Sub(c.startedAt).Seconds()),
	}}, nil
}

// urlOf reads the address that the server prints when it serves.
func (b *bench) urlOf(ctx context.Context, server *child) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, urlWait)
	defer cancel()
	for {
		var doc struct {
			URL string `json:"url"`
		}
		f, err := os.Open(server.out)
		if err != nil {
			return "", err
		}
		line, err := bufio.NewReader(f).ReadBytes('\n')
		_ = f.Close()
		if err == nil && json.Unmarshal(line, &doc) == nil && doc.URL != "" {
			return doc.URL, nil
		}
		if !server.running() {
			return "", failure.New(failure.Runtime, "the stream's server ended: %v\n%s", server.err, server.tail())
		}
		if err := b.o.Clock.Sleep(ctx, 10*time.Millisecond); err != nil {
			return "", err
		}
	}
}
