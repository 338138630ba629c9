package sqliteengine

import (
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
	if boot, err := bootID(); err != nil || len(boot) != 36 {
		t.Errorf("%q, %v", boot, err)
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
