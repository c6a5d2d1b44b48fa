package operator

import (
	"context"
	"errors"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/failure"
)

// Decoder turns values of another format into JSON. The same bytes give the same
// text, whenever they are decoded.
type Decoder interface {
	// Decode appends the JSON text of value to dst. An *event.Error is a fault of
	// this value, which becomes a dead letter; any other error fails the batch.
	Decode(ctx context.Context, dst, value []byte) ([]byte, error)
}

// decode replaces the values of the input by their JSON and notes those that have
// none. raw stays what it is: the record's own bytes.
func (c *chain) decode(in *input) error {
	ctx := c.env.Context
	if ctx == nil {
		ctx = context.Background()
	}
	b := array.NewBinaryBuilder(c.mem, arrow.BinaryTypes.Binary)
	defer b.Release()
	b.Reserve(in.rows)
	var text []byte
	for i := range in.rows {
		if in.value.IsNull(i) {
			b.AppendNull()
			continue
		}
		if in.value.ValueLen(i) == 0 {
			b.AppendEmptyValue()
			continue
		}
		out, err := c.cfg.Decoder.Decode(ctx, text[:0], in.value.Value(i))
		text = out
		var fault *event.Error
		switch {
		case errors.As(err, &fault):
			if c.undecoded == nil {
				c.undecoded = map[int]*event.Error{}
			}
			c.undecoded[i] = fault
			b.AppendEmptyValue()
		case err != nil:
			return err
		case b.DataLen()+len(text) > math.MaxInt32:
			return failure.New(failure.Runtime, "the values of %d records are more than 2 GiB as JSON", in.rows).
				WithHint("lower maxOffsetsPerTrigger")
		default:
			b.Append(text)
		}
	}
	in.value = b.NewBinaryArray()
	return nil
}
