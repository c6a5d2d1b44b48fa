package broker

import (
	"context"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clientLog hands the client's own log on at debug level. Whatever the client
// calls it: what matters is said by who asked, as an error or a warning. The
// client's finest level is left out: it has lines for each request.
type clientLog struct{ to *slog.Logger }

var _ kgo.Logger = clientLog{}

// Level implements kgo.Logger.
func (l clientLog) Level() kgo.LogLevel {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelNone
}

// Log implements kgo.Logger.
func (l clientLog) Log(_ kgo.LogLevel, msg string, keyvals ...any) {
	l.to.Debug("kafka client: "+msg, keyvals...)
}
