//go:build unix

package cli

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// slot starts a slot that its command holds until the test ends.
func slot(t *testing.T, store string, number int64, flagsAndName ...string) *process {
	t.Helper()
	args := append([]string{"slot", "--ttl", lossTTL.String(), "-n", "3"}, flagsAndName...)
	p := start(t, command(t, store, append(args, "--", "sh", "-c", "echo $PAWL_SLOT; exec sleep 1000")...))
	if is := int64(p.number()); is != number {
		t.Fatalf("slot %d, want %d: %s", is, number, p.errors())
	}
	return p
}

func TestSlot_has_a_number_of_its_own(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		first := slot(t, store, 0, name)
		slot(t, store, 2, "--prefer", "2", name)
		slot(t, store, 1, "--prefer", "2", name)
		_, stderr := want(t, 75, store, "slot", "--try", "-n", "3", name, "--", "true")
		complaint(t, stderr, "not acquired: held by ")
		complaint(t, stderr, " and 2 more")
		_, stderr = want(t, 9, store, "slot", "--wait", "3s", "-E", "9", "-n", "3", name, "--", "true")
		complaint(t, stderr, "not acquired within 3s: held by ")
		_, stderr = want(t, 64, store, "slot", "-n", "4", name, "--", "true")
		complaint(t, stderr, "in use")
		if is := states(t, store, "pawl:slots/"+name); is != "granted granted granted" {
			t.Errorf("claims: %s", is)
		}
		first.signal(syscall.SIGKILL)
		killed := time.Now()
		slot(t, store, 0, name)
		if took := time.Since(killed); took > lossTTL+time.Second {
			t.Errorf("the number was back after %v", took)
		}
	})
}

func TestSlot_tells_the_command(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	script := `echo "$PAWL_NAME $PAWL_SLOT"; echo $PAWL_TOKEN; exit 3`
	last := 0
	for range 2 {
		p := start(t, command(t, store, "slot", "-n", "8", "--prefer", "5", "a name", "--", "sh", "-c", script))
		if is := p.line(); is != "a name 5" {
			t.Errorf("line %q", is)
		}
		if token := p.number(); token <= last {
			t.Errorf("token %d after %d", token, last)
		} else {
			last = token
		}
		if code := p.wait(); code != 3 {
			t.Errorf("exit code %d", code)
		}
	}
	if is := states(t, store, "pawl:slots/a name"); is != "" {
		t.Errorf("claims are left: %s", is)
	}
}

func TestSlot_lost_stops_its_command(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		p := slot(t, store, 0, name)
		want(t, 0, store, "break", "--yes", "pawl:slots/"+name)
		if code := p.wait(); code != 74 {
			t.Errorf("exit code %d", code)
		}
	})
}

func TestSlot_refuses_wrong_usage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, says string }{
		{"", "the form is: pawl slot [flags] NAME -- CMD [ARG...]"},
		{"x -- true", "-n is missing"},
		{"-n 0 x -- true", "-n is 0: 1 to 4096 are allowed"},
		{"-n 3 --prefer 3 x -- true", "--prefer is 3: 0 to 2 are allowed"},
		{"-n 3 --try --wait 1s x -- true", "--try and --wait exclude each other"},
		{"-n 3 --shared x -- true", "unknown flag: --shared"},
		{"-n 3 -E 256 x -- true", "-E is 256"},
	} {
		_, stderr := want(t, 64, "redis://127.0.0.1:1", append([]string{"slot"}, strings.Fields(test.args)...)...)
		complaint(t, stderr, test.says)
	}
}
