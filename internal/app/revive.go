package app

import (
	"context"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/ingest"
	"github.com/weirlake/weir/internal/pipeline"
)

// ReviveTopic puts the dead-letter topic of an ingest section to its contract as
// it is now and publishes what meets it to the main topic, each once.
func ReviveTopic(ctx context.Context, p *pipeline.Pipeline, name string, dryRun bool, o Options) (*ingest.Revived, error) {
	in, err := pickIngest(p, name)
	if err != nil {
		return nil, err
	}
	if p.Kafka == nil {
		return nil, failure.New(failure.Config, "%s names no broker", p.File)
	}
	a := &App{P: p, opts: o, notify: map[string]*notifier{}}
	a.fillOptions()
	defer a.Close()
	if err := a.openKafka(ctx); err != nil {
		return nil, err
	}
	opts, err := a.KafkaOptions()
	if err != nil {
		return nil, err
	}
	return ingest.Revive(ctx, IngestConfig(in, p.Kafka), opts, dryRun)
}
