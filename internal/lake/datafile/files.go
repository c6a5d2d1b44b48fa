package datafile

import (
	"fmt"
	"io"
	"sync"
)

// fileState is one file that is being written.
type fileState struct {
	no   int
	path string
	pv   partitionValue
	w    io.WriteCloser
	asm  *assembler
	out  File
}

// aborter is what a writer of FS may have besides Close.
type aborter interface{ Abort() }

// abort gives the file up. Without an Abort method the file is closed as it
// is, so that no handle leaks: a torn file that nothing references.
func (f *fileState) abort() {
	if f.w == nil {
		return
	}
	if a, ok := f.w.(aborter); ok {
		a.Abort()
	} else {
		_ = f.w.Close()
	}
	f.w = nil
}

// appendJobs writes encoded row groups to their files in the order in which
// they were submitted. After an error it only drains.
func (w *Writer) appendJobs() {
	defer w.wg.Done()
	for j := range w.ordered {
		g, ok := <-j.out
		if !ok {
			continue // the encoder has recorded why
		}
		if w.failed() == nil {
			if err := w.appendRowGroup(j, g); err != nil {
				w.fail(err)
			}
		}
		g.release()
	}
}

func (w *Writer) appendRowGroup(j *job, g *rowGroup) error {
	f := w.files[j.part]
	if f == nil {
		f = &fileState{no: w.nextNo, path: w.path(j.pv, w.nextNo), pv: j.pv}
		w.nextNo++
		out, err := w.spec.FS.Create(f.path)
		if err != nil {
			return fmt.Errorf("create data file %s: %w", f.path, err)
		}
		f.w, f.asm = out, &assembler{w: out}
		w.files[j.part] = f
	}
	if err := f.asm.add(g); err != nil {
		return fmt.Errorf("write data file %s: %w", f.path, err)
	}
	if f.asm.pos >= w.spec.TargetBytes {
		delete(w.files, j.part)
		w.closed = append(w.closed, f)
		return w.finishFile(f, &sync.Mutex{})
	}
	return nil
}

// finishFile writes the footer, makes the file durable and describes it.
func (w *Writer) finishFile(f *fileState, report *sync.Mutex) error {
	meta, err := f.asm.finish()
	if err != nil {
		f.abort()
		return fmt.Errorf("write data file %s: %w", f.path, err)
	}
	out := f.w
	f.w = nil
	if err := out.Close(); err != nil {
		return fmt.Errorf("make data file %s durable: %w", f.path, err)
	}
	if f.out, err = w.describe(meta, f.path, f.asm.pos, f.pv); err != nil {
		return err
	}
	f.asm = nil
	report.Lock()
	defer report.Unlock()
	if w.onFile != nil {
		w.onFile()
	}
	return nil
}

// finishFiles finishes what is still open, several at a time, and lists all
// files by number. After an error everything open is given up.
func (w *Writer) finishFiles() ([]File, error) {
	var report sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, closersMax)
	for _, f := range w.files {
		if w.failed() != nil {
			f.abort()
			continue
		}
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			if err := w.finishFile(f, &report); err != nil {
				w.fail(err)
			}
		}()
	}
	wg.Wait()
	if err := w.failed(); err != nil {
		return nil, err
	}
	out := make([]File, w.nextNo)
	for _, f := range w.closed {
		out[f.no] = f.out
	}
	for _, f := range w.files {
		out[f.no] = f.out
	}
	return out, nil
}
