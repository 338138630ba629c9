package idemleasetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/idem"
)

// finish claims the key, and completes it each time it is told to. finish says how that went. The end of its input ends it.
func finish(url, key, ttl string) error {
	within, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	eng, err := open.Open(context.Background(), url)
	if err != nil {
		return err
	}
	client, err := pawl.New(context.Background(), eng, &pawl.Options{TTL: within})
	if err != nil {
		return err
	}
	c, err := idem.NewLeases(client, nil).Begin(context.Background(), idem.Key{Scope: "complete", ID: key}, idem.Fingerprint{}, nil)
	if err != nil {
		return err
	}
	fmt.Println("claimed")
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		result := "result of the worker"
		if orders.Text() == "large" {
			result = strings.Repeat("0123456789", idem.MaxResult/10)
			fmt.Println("begins")
		}
		switch err := c.Complete(context.Background(), []byte(result)); {
		case err == nil:
			fmt.Println("done")
		case errors.Is(err, idem.ErrTakenOver):
			fmt.Println("taken over")
		case errors.Is(err, pawl.ErrUnavailable):
			fmt.Println("unavailable")
		default:
			return err
		}
	}
	return nil
}

// finisher is a process that runs finish, over a network of its own.
type finisher struct {
	*storm
	key    string
	leases *idem.Leases // of another machine
	link   *proxy.Proxy // nil: the store is a file
	cmd    *exec.Cmd
	in     io.Writer
	out    *bufio.Scanner
}

func (s *storm) finisher() *finisher {
	f := &finisher{storm: s, key: idem.NewToken(), leases: idem.NewLeases(s.client(), nil)}
	url := s.url(s.dir)
	if s.at != "" {
		f.link = proxy.New(s, s.at)
		url = s.url(f.link.Addr)
	}
	f.cmd = exec.Command(os.Args[0])
	f.cmd.Env = append(os.Environ(), beWorker+"="+strings.Join([]string{url, f.key, "", s.ttl.String(), "finish"}, "\n"))
	f.cmd.Stderr = os.Stderr
	in, err := f.cmd.StdinPipe()
	if err != nil {
		s.Fatal(err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		f.signal(syscall.SIGKILL)
		f.cmd.Wait() //nolint:errcheck // it was killed
	})
	f.in, f.out = in, bufio.NewScanner(out)
	f.hears("claimed")
	return f
}

func (f *finisher) signal(sig syscall.Signal) { f.cmd.Process.Signal(sig) } //nolint:errcheck // it runs, or has ended

func (f *finisher) say(order string) {
	if _, err := fmt.Fprintln(f.in, order); err != nil {
		f.Fatal(err)
	}
}

func (f *finisher) hears(want string) {
	f.Helper()
	if !f.out.Scan() || f.out.Text() != want {
		f.Fatalf("the worker says %q, want %q", f.out.Text(), want)
	}
}

// takesOver waits as another machine until the key is free, and completes the key.
func (f *finisher) takesOver() {
	f.Helper()
	c, err := f.leases.Begin(f.Context(), idem.Key{Scope: "complete", ID: f.key}, idem.Fingerprint{}, nil)
	if err != nil {
		f.Fatal(err)
	}
	if _, kept := c.Kept(); kept || c.Attempts() != 2 {
		f.Errorf("kept: %v, attempt %d", kept, c.Attempts())
	}
	if err := c.Complete(f.Context(), []byte("result of the other")); err != nil {
		f.Error(err)
	}
}

func (f *finisher) wantKept(want string) {
	f.Helper()
	c, err := f.leases.Begin(f.Context(), idem.Key{Scope: "complete", ID: f.key}, idem.Fingerprint{}, nil)
	if err != nil {
		f.Fatal(err)
	}
	if is, kept := c.Kept(); !kept || string(is) != want {
		f.Errorf("kept: %v, %.60q, want %.60q", kept, is, want)
	}
}

// TestCompleteFails: a process cannot complete its key, because its network fails or the process is frozen over the end of
// its lease. The process is told so, and at most one result is kept.
func TestCompleteFails(t *testing.T) {
	for _, name := range []string{"sqlite", "redis", "postgres", "mariadb"} {
		s := stores[name]
		t.Run(name+" and frozen", func(t *testing.T) {
			t.Parallel()
			f := newStorm(t, s).finisher()
			f.signal(syscall.SIGSTOP)
			f.takesOver()
			f.signal(syscall.SIGCONT)
			f.say("")
			f.hears("taken over")
			f.wantKept("result of the other")
		})
		if s.addr == nil {
			continue
		}
		t.Run(name+" loses requests", func(t *testing.T) {
			t.Parallel()
			f := newStorm(t, s).finisher()
			f.link.Freeze()
			f.say("")
			f.hears("unavailable")
			f.takesOver()
			f.link.Heal()
			f.say("")
			f.hears("taken over")
			f.wantKept("result of the other")
		})
		t.Run(name+" loses replies", func(t *testing.T) {
			t.Parallel()
			f := newStorm(t, s).finisher()
			f.link.FreezeReplies()
			f.say("")
			f.hears("unavailable")
			f.wantKept("result of the worker")
			f.link.Heal()
			f.say("")
			f.hears("done")
			f.wantKept("result of the worker")
		})
	}
}

// TestKilledInComplete: a large result is written part by part. A process that is killed in the middle leaves the whole
// result or none.
func TestKilledInComplete(t *testing.T) {
	for _, name := range []string{"sqlite", "redis"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newStorm(t, stores[name]).finisher()
			f.say("large")
			f.hears("begins")
			<-time.After(rand.N(30 * time.Millisecond)) // anywhere in the work
			f.signal(syscall.SIGKILL)
			c, err := f.leases.Begin(t.Context(), idem.Key{Scope: "complete", ID: f.key}, idem.Fingerprint{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			result, kept := c.Kept()
			t.Logf("kept: %v", kept)
			if kept && len(result) != idem.MaxResult/10*10 || !kept && c.Attempts() != 2 {
				t.Errorf("kept: %v, %d bytes, attempt %d", kept, len(result), c.Attempts())
			}
		})
	}
}
