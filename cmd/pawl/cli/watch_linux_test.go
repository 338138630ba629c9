package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/outbox"
)

// crowd fills a store with more names, and with more members of the group x, than a pipe can hold.
func crowd(t *testing.T, store string) {
	t.Helper()
	eng, err := open.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	c, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(t.Context()) })
	long := strings.Repeat("x", 400)
	meta := map[string]string{"long": strings.Repeat("x", 2000)}
	for i := range 60 {
		if _, err := c.Mutex(fmt.Sprintf("%s%d", long, i)).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := group.New(c, "x").Join(t.Context(), group.Member{Addr: fmt.Sprintf("h:%d", i+1), Meta: meta}); err != nil {
			t.Fatal(err)
		}
	}
}

// A reader that no longer reads, and has not gone, does not hold up the end of a watch.
func TestWatch_ends_though_nobody_reads(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	crowd(t, store)
	for _, args := range []string{"ls --watch", "ls --watch --json", "members --watch x", "members --watch --json x"} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(fmt.Sprintf("%s, signal %d", args, sig), func(t *testing.T) {
				t.Parallel()
				unread(t, command(t, store, strings.Fields(args)...), sig, 0)
			})
		}
	}
}

// Nor does such a reader hold up the end of another verb.
func TestInterrupt_ends_verbs_though_nobody_reads(t *testing.T) {
	t.Parallel()
	db := "sqlite:" + filepath.Join(t.TempDir(), "box.db")
	want(t, 0, "memory:", "outbox", "--db", db, "migrate")
	opened, err := open.OpenDatabase(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close() //nolint:errcheck // the end
	box, err := outbox.New(opened.Dialect, nil)
	if err != nil {
		t.Fatal(err)
	}
	large := outbox.Message{ID: "large", Topic: "t", Payload: make([]byte, 200<<10)}
	all := []outbox.Message{large}
	for i := range 400 {
		all = append(all, outbox.Message{ID: fmt.Sprint(i), Topic: "t", Key: strings.Repeat("x", 200)})
	}
	if _, err := box.Enqueue(t.Context(), opened.DB, all...); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"outbox --db " + db + " show --payload large", "outbox --db " + db + " ls -n 500", "id uuid7 -n 1000000"} {
		t.Run(args[:9], func(t *testing.T) {
			t.Parallel()
			unread(t, command(t, "memory:", strings.Fields(args)...), syscall.SIGTERM, exitSignal+int(syscall.SIGTERM))
		})
	}
}

// unread runs a verb whose output fills a pipe that nobody reads. A signal ends the verb with a code.
func unread(t *testing.T, cmd *exec.Cmd, sig syscall.Signal, code int) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = in
	err = cmd.Start()
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() //nolint:errcheck // the code says all
	}()
	defer cmd.Process.Kill() //nolint:errcheck // the command may have ended
	before, same := 0, 0
	eventually(t, "the content of the pipe has stopped growing", func() bool {
		is := buffered(t, out)
		if same++; is != before || is < 20<<10 { // each object has pages of its own
			before, same = is, 0
		}
		return same == 20
	})
	cmd.Process.Signal(sig) //nolint:errcheck // the end tells
	select {
	case <-ended:
		if is := cmd.ProcessState.ExitCode(); is != code {
			t.Errorf("the code is %d, want %d", is, code)
		}
	case <-time.After(patience):
		t.Errorf("not ended within %v", patience)
	}
}
