package lake

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go/table"
)

// ReadFile emits the rows of one data file of a plan, without those that its
// delete files take away: all others, also those that the plan's filter would
// leave out. columns are what is read, nil all of them.
func ReadFile(ctx context.Context, t *table.Table, task table.FileScanTask, columns []string, emit func(arrow.RecordBatch) error) error {
	var opts []table.ScanOption
	if columns != nil {
		opts = append(opts, table.WithSelectedFields(columns...))
	}
	task.Residual = nil // the filter chose the file, not its rows
	_, records, err := t.Scan(opts...).ReadTasks(ctx, []table.FileScanTask{task})
	if err != nil {
		return fmt.Errorf("read %s: %w", task.File.FilePath(), err)
	}
	for rec, err := range records {
		if err != nil {
			return fmt.Errorf("read %s: %w", task.File.FilePath(), err)
		}
		if err := emit(rec); err != nil {
			return err
		}
	}
	return nil
}
