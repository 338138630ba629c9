//go:build unix

package cli

import (
	"strings"
	"syscall"
	"testing"
)

// resizable are the stores that can resize.
func resizable(t *testing.T, test func(t *testing.T, store, name string)) {
	t.Helper()
	for _, kind := range []string{"sqlite", "redis"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, stores[kind](t), fresh(t))
		})
	}
}

// Every process says -n 2 all the time.
func TestResize_lets_in_those_who_wait_and_evicts_nobody(t *testing.T) {
	t.Parallel()
	resizable(t, func(t *testing.T, store, name string) {
		holders := []*process{held(t, store, "-n", "2", name), held(t, store, "-n", "2", name)}
		var waiters []*process
		for range 3 {
			waiters = append(waiters, start(t, command(t, store, "run", "-n", "2", name, "--", "sh", "-c", "echo up; exec sleep 1000")))
			eventually(t, "it waits", func() bool { return len(show(t, store, name).Claims) == len(holders)+len(waiters) })
		}
		stdout, _ := want(t, 0, store, "resize", name, "4")
		for _, w := range waiters[:2] {
			if line := w.line(); line != "up" {
				t.Errorf("line %q", line)
			}
		}
		if is := states(t, store, name); is != "granted granted granted granted waiting" {
			t.Errorf("claims after %q: %s", stdout, is)
		}
		stdout, _ = want(t, 0, store, "resize", name, "1")
		matches(t, stdout, name+": 1 permit, 4 held, 1 waiting")
		for _, p := range append(holders, waiters[:2]...) {
			if is := show(t, store, name); is.Permits != 1 || is.Claims[len(is.Claims)-1].State != "waiting" {
				t.Errorf("somebody was let in: %+v", is)
			}
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != 143 {
				t.Errorf("exit code %d: %s", code, p.errors())
			}
		}
		if line := waiters[2].line(); line != "up" {
			t.Errorf("line %q", line)
		}
		waiters[2].signal(syscall.SIGTERM)
		waiters[2].wait()
		held(t, store, "-n", "2", name)
		_, stderr := want(t, 75, store, "run", "--try", "-n", "2", name, "--", "true") // the number has outlived the claims
		complaint(t, stderr, "not acquired")
	})
}

func TestResize_of_what_nobody_uses(t *testing.T) {
	t.Parallel()
	resizable(t, func(t *testing.T, store, name string) {
		_, stderr := want(t, 64, store, "resize", name, "2")
		complaint(t, stderr, "check the name, or say --unused")
		if is := show(t, store, name); is.Resized != 0 {
			t.Errorf("the number is %d", is.Resized)
		}
		stdout, _ := want(t, 0, store, "resize", "--unused", name, "2")
		matches(t, stdout, name+": 2 permits, 0 held, 0 waiting")
		if is := show(t, store, name); is.Resized != 2 {
			t.Errorf("the number is %d", is.Resized)
		}
		held(t, store, "-n", "1", name)
		held(t, store, "-n", "1", name)
		stdout, _ = want(t, 0, store, "show", name)
		if !strings.Contains(stdout, "an operator has set the number of permits to 2") {
			t.Errorf("show prints %s", stdout)
		}
	})
}

func TestResize_is_taken_back(t *testing.T) {
	t.Parallel()
	resizable(t, func(t *testing.T, store, name string) {
		held(t, store, "-n", "1", name)
		want(t, 0, store, "resize", name, "2")
		second := held(t, store, "-n", "1", name)
		stdout, _ := want(t, 0, store, "resize", "--reset", name, "1")
		matches(t, stdout, name+": 1 permit, 2 held, 0 waiting")
		if is := show(t, store, name); is.Resized != 0 || is.Permits != 1 {
			t.Errorf("after the reset: %+v", is)
		}
		second.signal(syscall.SIGTERM)
		second.wait()
		want(t, 75, store, "run", "--try", "-n", "1", name, "--", "true")
		_, stderr := want(t, 64, store, "run", "--try", "-n", "2", name, "--", "true") // another number than the stored number
		complaint(t, stderr, "not as semaphore of 2")
	})
}

func TestResize_refused(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	for _, args := range [][]string{{"resize"}, {"resize", "x"}, {"resize", "x", "0"}, {"resize", "x", "many"}, {"resize", "", "1"}, {"resize", "x", "1073741825"}} {
		want(t, 64, store, args...)
	}
	held(t, store, "x")
	_, stderr := want(t, 64, store, "resize", "x", "2")
	complaint(t, stderr, "in use as a lock")
	_, stderr = want(t, 64, stores["etcd"](t), "resize", "x", "2")
	complaint(t, stderr, "no resizing of semaphores on etcd")
	_, stderr = want(t, 64, store, "resize", "pawl:update/x", "2")
	complaint(t, stderr, "pawl's own")
	_, stderr = want(t, 69, "redis://127.0.0.1:1", "resize", "x", "2")
	complaint(t, stderr, "unavailable")
}
