package lake

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func tracedIO() (*FileIO, *[]string) {
	var ops []string
	f := &FileIO{synced: &folders{done: map[string]bool{}}}
	f.trace = func(op, path string) { ops = append(ops, op+" "+path) }
	return f, &ops
}

func TestAFileIsSyncedBeforeItsNameAndItsFolderAfter(t *testing.T) {
	f, ops := tracedIO()
	dir := t.TempDir()
	name := filepath.Join(dir, "new", "deep", "file")
	if err := f.WriteFile("file://"+name, []byte("x")); err != nil {
		t.Fatal(err)
	}
	want := []string{"sync " + name, "rename " + name, "syncdir " + filepath.Dir(name), "syncdir " + filepath.Join(dir, "new"), "syncdir " + dir}
	if len(*ops) < len(want) || !slices.Equal((*ops)[:len(want)], want) {
		t.Fatalf("order of durable operations:\n%s", strings.Join(*ops, "\n"))
	}
	*ops = nil
	if err := f.WriteFile("file://"+filepath.Join(dir, "new", "deep", "second"), nil); err != nil {
		t.Fatal(err)
	}
	if len(*ops) != 3 {
		t.Fatalf("the parents are synced again: %v", *ops)
	}
}

func TestAnUnfinishedFileIsNotThereUnderItsName(t *testing.T) {
	f, _ := tracedIO()
	name := filepath.Join(t.TempDir(), "file")
	w, err := f.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("visible before Close: %v", err)
	}
	w.(*fileWriter).Abort()
	left, _ := os.ReadDir(filepath.Dir(name))
	if len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func TestAFileWhoseWriteFailedIsNotPublished(t *testing.T) {
	f, _ := tracedIO()
	name := filepath.Join(t.TempDir(), "file")
	w, err := f.create(name)
	if err != nil {
		t.Fatal(err)
	}
	w.file.Close()
	if _, err := w.Write([]byte("x")); err == nil {
		t.Fatal("write to a closed file succeeded")
	}
	if err := w.Close(); err == nil {
		t.Fatal("Close published a file that is not whole")
	}
	if left, _ := os.ReadDir(filepath.Dir(name)); len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func TestWalkDirGivesFullURIs(t *testing.T) {
	f, _ := tracedIO()
	dir := t.TempDir()
	root := "file://" + dir
	if err := f.WriteFile(root+"/a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := f.WalkDir(root, func(p string, _ fs.DirEntry, err error) error { got = append(got, p); return err }); err != nil {
		t.Fatal(err)
	}
	if want := []string{root, root + "/a", root + "/a/b"}; !slices.Equal(got, want) {
		t.Fatalf("got %v", got)
	}
}

func TestOnlyLocalLocationsAreTaken(t *testing.T) {
	for in, want := range map[string]string{"file:///a/b": "/a/b", "file:/a/b": "/a/b", "/a/b": "/a/b", "/a/p:2026/f": "/a/p:2026/f"} {
		if got, err := LocalPath(in); err != nil || got != want {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
	for _, in := range []string{"s3://a/b", "file://host/a"} {
		if _, err := LocalPath(in); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}
