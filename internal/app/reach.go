package app

import (
	"context"
	"errors"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// contact says at once what is wrong with the settings of a connection. A
// cluster that is merely out of reach is left to whoever waits for it.
func contact(ctx context.Context, c broker.Config) error {
	err := broker.Contact(ctx, c)
	var classified *failure.Error
	if errors.As(err, &classified) {
		return err
	}
	return ctx.Err()
}

// Reach finds the pipeline's broker for a command that only reads: an embedded
// one that runs already is used, one that does not is started until the
// returned function is called.
func Reach(ctx context.Context, p *pipeline.Pipeline) (broker.Config, func(), error) {
	if p.Kafka == nil {
		return broker.Config{}, func() {}, nil
	}
	if p.Kafka.Embedded != nil {
		if bootstrap, ok := broker.Running(p.Kafka.Embedded.DataDir); ok {
			return KafkaConfig(p.Kafka, bootstrap), func() {}, nil
		}
	}
	a := &App{P: p}
	a.fillOptions()
	if err := a.openKafka(ctx); err != nil {
		return broker.Config{}, nil, err
	}
	if err := contact(ctx, a.Kafka); err != nil {
		return broker.Config{}, nil, err
	}
	return a.Kafka, func() { _ = a.Close() }, nil
}
