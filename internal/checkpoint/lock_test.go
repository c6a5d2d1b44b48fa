package checkpoint

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/failure"
)

func acquire(t *testing.T, dir, instance string) *Lock {
	t.Helper()
	l, err := Acquire(dir, instance, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Release() })
	return l
}

func TestASecondInstanceIsRefusedByTheNameOfTheFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints", "bronze")
	first := acquire(t, dir, "instance-1")
	_, err := Acquire(dir, "instance-2", false)
	if !failure.Is(err, failure.Fenced) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), "instance-1") {
		t.Fatal(err)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	acquire(t, dir, "instance-2")
}

func TestATakeOverLeavesTheLockWhereItIs(t *testing.T) {
	dir := t.TempDir()
	first := acquire(t, dir, "instance-1")
	second, err := Acquire(dir, "instance-2", true)
	if err != nil {
		t.Fatal(err)
	}
	if second.Held() || second.TakenOver == nil || second.TakenOver.InstanceID != "instance-1" || second.TakenOver.PID != os.Getpid() {
		t.Fatalf("%+v", second.TakenOver)
	}
	if err := second.Release(); err != nil || !first.Held() {
		t.Fatal("releasing the take-over released the lock of the other instance")
	}
	if b, err := os.ReadFile(LockPath(dir)); err != nil || !strings.Contains(string(b), "instance-1") {
		t.Fatalf("%s, %v", b, err)
	}
	if _, err := Acquire(dir, "instance-3", false); !failure.Is(err, failure.Fenced) {
		t.Fatal(err)
	}
}

func TestATakeOverOfNobodyIsAnOrdinaryLock(t *testing.T) {
	l, err := Acquire(t.TempDir(), "instance-1", true)
	if err != nil || !l.Held() || l.TakenOver != nil {
		t.Fatalf("%+v, %v", l, err)
	}
	_ = l.Release()
}

// TestAChildProcessDoesNotKeepTheLock: the embedded broker outlives a killed
// parent and must not lock it out.
func TestAChildProcessDoesNotKeepTheLock(t *testing.T) {
	dir := t.TempDir()
	first := acquire(t, dir, "instance-1")
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Skipf("no sleep command: %v", err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	acquire(t, dir, "instance-1")
}

func TestTheLockOfAKilledProcessIsFree(t *testing.T) {
	if dir := os.Getenv("WEIR_TEST_LOCK_DIR"); dir != "" { // the child
		if _, err := Acquire(dir, "child", false); err != nil {
			t.Fatal(err)
		}
		_, _ = os.Stdout.WriteString("locked\n")
		select {}
	}
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestTheLockOfAKilledProcessIsFree$")
	child.Env = append(os.Environ(), "WEIR_TEST_LOCK_DIR="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 7)
	if _, err := out.Read(buf); err != nil || string(buf) != "locked\n" {
		t.Fatalf("%q, %v", buf, err)
	}
	_, err = Acquire(dir, "instance-1", false)
	if !failure.Is(err, failure.Fenced) || !strings.Contains(err.Error(), strconv.Itoa(child.Process.Pid)) {
		t.Errorf("while the child lives: %v", err)
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	acquire(t, dir, "instance-1")
}

func TestALockFileThatWasRemovedDoesNotLockTwoOut(t *testing.T) {
	dir := t.TempDir()
	first := acquire(t, dir, "instance-1")
	if err := os.Remove(LockPath(dir)); err != nil {
		t.Fatal(err)
	}
	// The folder was emptied under the first one: the epoch fences it, the lock
	// cannot.
	second := acquire(t, dir, "instance-2")
	if !first.Held() || !second.Held() {
		t.Fatal("both hold a file of that name")
	}
}

func TestWhoHoldsALockIsSaidWithoutTakingIt(t *testing.T) {
	if _, err := os.Stat("/proc/locks"); err != nil {
		t.Skip("no /proc/locks")
	}
	dir := filepath.Join(t.TempDir(), "q")
	if h := HeldBy(dir); h != nil {
		t.Fatalf("%+v holds what is not there", h)
	}
	l, err := Acquire(dir, "me", false)
	if err != nil {
		t.Fatal(err)
	}
	if h := HeldBy(dir); h == nil || h.InstanceID != "me" || h.PID != os.Getpid() {
		t.Fatalf("%+v", h)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	if h := HeldBy(dir); h != nil {
		t.Fatalf("%+v holds what was released", h)
	}
}
