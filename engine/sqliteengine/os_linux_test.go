package sqliteengine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

func TestKernelNamesItsFileSystems(t *testing.T) {
	if number, err := fileSystem("/proc"); err != nil || number != 0x9FA0 {
		t.Errorf("/proc is %#x, %v", number, err)
	}
	if _, err := fileSystem("/proc/none"); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}

func TestClockIsTheTimeSinceBoot(t *testing.T) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	up, err := time.ParseDuration(strings.Fields(string(text))[0] + "s")
	if err != nil {
		t.Fatal(err)
	}
	if off := up - time.Duration(now())*time.Microsecond; off.Abs() > time.Second {
		t.Errorf("%v off", off)
	}
}

// TestTimeNamespace: a process in a time namespace of its own, as in a container,
// lives by the same clock as the others on this file.
func TestTimeNamespace(t *testing.T) {
	path := file(t)
	holder := open(t, newEngine(t, path), time.Hour)
	sessiontest.Hold(t, holder, mutex("job", "held"))
	cmd := exec.Command("unshare", "-T", "--boottime", "100000", os.Args[0])
	if err := exec.Command("unshare", "-T", "--boottime", "100000", "true").Run(); err != nil {
		t.Logf("only what the kernel says is read, for this user may make no time namespace: %v", err)
		if got := bootShift("monotonic           0         0\nboottime       100000   5000\n"); got != 100_000_000_005 {
			t.Errorf("shift of %d µs", got)
		}
		return
	}
	p := startCommand(t, cmd, path, time.Hour)
	p.do("enter job theirs")
	p.expect("waiting")
	if gone, err := holder.Renew(t.Context(), []*engine.Claim{mutex("job", "held")}); err != nil || len(gone) > 0 {
		t.Errorf("the holder has lost %v, %v", gone, err)
	}
}

// TestMountedAlone: a single file that is bound into a container has its log beside another name.
func TestMountedAlone(t *testing.T) {
	path := file(t)
	newEngine(t, path)
	if mounted(path) || !mounted("/proc") {
		t.Errorf("%s: %v, /proc: %v", path, mounted(path), mounted("/proc"))
	}
	target := filepath.Join(t.TempDir(), "other.db")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bind := func(then ...string) *exec.Cmd {
		return exec.Command("unshare", append([]string{"-m", "sh", "-c", `mount --bind "$0" "$1" && shift && exec "$@"`, path, target}, then...)...)
	}
	if err := bind("true").Run(); err != nil {
		t.Logf("only what the kernel says of /proc is read, for this user may mount nothing: %v", err)
		return
	}
	cmd := bind(os.Args[0])
	cmd.Env = append(os.Environ(), "PAWL_AGENT_FILE="+target, "PAWL_AGENT_TTL=1h")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "mounted alone") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestContainersOfOneKernel: a container may see another boot id than the machine. The container ends no session
// of others when it opens the file.
func TestContainersOfOneKernel(t *testing.T) {
	path := file(t)
	holder := open(t, newEngine(t, path), time.Hour)
	sessiontest.Hold(t, holder, mutex("job", "held"))
	id := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(id, []byte("11111111-2222-3333-4444-555555555555\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	contain := func(program string) *exec.Cmd {
		return exec.Command("unshare", "-m", "sh", "-c", `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$1"`, id, program)
	}
	cmd := contain(os.Args[0])
	if err := contain("true").Run(); err != nil {
		t.Logf("the other process sees the same boot id, for this user may mount nothing: %v", err)
		cmd = exec.Command(os.Args[0])
	}
	p := startCommand(t, cmd, path, time.Hour)
	p.do("enter job theirs")
	p.expect("waiting")
	newEngine(t, path)
	if gone, err := holder.Renew(t.Context(), []*engine.Claim{mutex("job", "held")}); err != nil || len(gone) > 0 {
		t.Errorf("the holder has lost %v, %v", gone, err)
	}
	if n := rows(t, newEngine(t, path)); n != 6 { // two sessions, their claims and inboxes
		t.Errorf("%d rows and inboxes", n)
	}
}

// restart makes all sessions of a file those of an earlier run of the machine, which was a long one.
func restart(t *testing.T, e *Engine) {
	t.Helper()
	update(t, e, `UPDATE pawl_sessions SET ends = ends + ?`, (30 * 24 * time.Hour).Microseconds())
}

func TestRestartOfTheMachineEndsAllSessions(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	s := open(t, e, 24*time.Hour)
	before := sessiontest.Hold(t, s, mutex("job", "a"))
	version, err := e.Put(t.Context(), "k", []byte("kept"), 0)
	if err != nil {
		t.Fatal(err)
	}
	restart(t, e)
	update(t, e, `UPDATE pawl_meta SET last = 1`) // and the power loss took back the counter
	after := newEngine(t, path)
	if n := rows(t, after); n != 1 { // the value
		t.Errorf("%d rows or inboxes are left", n)
	}
	if _, err := s.Renew(t.Context(), nil); !errors.Is(err, engine.ErrGone) {
		t.Errorf("renew: %v", err)
	}
	if next := sessiontest.Hold(t, open(t, after, time.Hour), mutex("job", "b")); next <= before {
		t.Errorf("token %v after %v", next, before)
	}
	if v, err := after.Get(t.Context(), "k"); err != nil || v.Version != version {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestRestoredCopyOfAnEarlierRun: the sessions in a copy from before the last boot have ended. A session
// that was opened after the restore lives.
func TestRestoredCopyOfAnEarlierRun(t *testing.T) {
	path := file(t)
	e := newEngine(t, path)
	sessiontest.Hold(t, open(t, e, time.Hour), mutex("job", "before"))
	restart(t, e) // the copy, restored while the engine runs
	s := open(t, e, time.Hour)
	sessiontest.Hold(t, s, mutex("job", "after"))
	sessiontest.Hold(t, open(t, newEngine(t, path), time.Hour), mutex("other", "b"))
	if gone, err := s.Renew(t.Context(), []*engine.Claim{mutex("job", "after")}); err != nil || len(gone) > 0 {
		t.Errorf("lost %v, %v", gone, err)
	}
	restart(t, e)
	sessiontest.Refuse(t, s, mutex("job", "late"), true, engine.ErrGone)
}
