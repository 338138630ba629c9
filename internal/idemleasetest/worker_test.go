package idemleasetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/testservers"
)

// beWorker makes the test binary a worker. The lines are the URL of the store, the folder of the effects,
// the number of keys, the TTL, and the kind of the worker.
const beWorker = "PAWL_IDEM_WORKER"

func TestMain(m *testing.M) {
	if order := os.Getenv(beWorker); order != "" {
		if err := work(strings.Split(order, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testservers.Main(m))
}

const (
	goroutines = 64 // of a worker
	block      = 64 // keys that all goroutines work on at about the same time
	each       = 8  // of them that one goroutine takes, in an order of its own
)

// work is what a worker of this kind does.
func work(order []string) error {
	if order[4] == "finish" {
		return finish(order[0], order[1], order[3])
	}
	return serve(order)
}

// serve works until it is killed, or has been through all keys.
func serve(order []string) error {
	keys, err := strconv.Atoi(order[2])
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(order[3])
	if err != nil {
		return err
	}
	eng, err := open.Open(context.Background(), order[0])
	for errors.Is(err, pawl.ErrUnavailable) { // the network of this worker has trouble
		time.Sleep(10 * time.Millisecond)
		eng, err = open.Open(context.Background(), order[0])
	}
	if err != nil {
		return err
	}
	client, err := pawl.New(context.Background(), eng, &pawl.Options{TTL: ttl, Lazy: true})
	if err != nil {
		return err
	}
	w, err := newWorker(client, order[1], order[4] == "naive")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	strange := make(chan error, goroutines)
	for range goroutines {
		wg.Go(func() {
			for first := 0; first < keys; first += block {
				for _, i := range rand.Perm(block)[:each] {
					if err := w.work(fmt.Sprint((first + i) % keys)); err != nil {
						strange <- err
						return
					}
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-strange:
		return err
	default:
		return client.Close(context.Background())
	}
}

type worker struct {
	client *pawl.Client
	leases *idem.Leases
	naive  bool
	dir    string
	log    *os.File
}

func newWorker(client *pawl.Client, dir string, naive bool) (*worker, error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return &worker{client, idem.NewLeases(client, nil), naive, dir, log}, err
}

// note appends one line, which the system takes whole.
func (w *worker) note(format string, args ...any) {
	if _, err := fmt.Fprintf(w.log, format+"\n", args...); err != nil {
		panic(err)
	}
}

// work calls the operation for a key until it has a result.
func (w *worker) work(key string) error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		done, err := w.call(ctx, key)
		cancel()
		switch {
		case done:
			return nil
		case err == nil:
		case !expected(err):
			return fmt.Errorf("key %s: %w", key, err)
		}
		time.Sleep(rand.N(20 * time.Millisecond))
	}
}

// expected reports whether a caller may see this error when the network fails.
func expected(err error) bool {
	for _, is := range []error{pawl.ErrUnavailable, pawl.ErrLost, pawl.ErrNotAcquired, idem.ErrInFlight, idem.ErrTakenOver} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

func (w *worker) call(ctx context.Context, key string) (done bool, err error) {
	if w.naive {
		return w.callNaively(ctx, key)
	}
	c, err := w.leases.Begin(ctx, keyOf(w.dir, key), idem.FingerprintOf([]byte(key)), nil)
	if err != nil {
		return false, err
	}
	if result, kept := c.Kept(); kept {
		w.note("result %s %s", key, result)
		return true, nil
	}
	w.note("believes %s %d %d", key, time.Now().UnixNano(), c.Token())
	if rand.IntN(20) == 0 {
		return false, c.Abort(ctx)
	}
	if rand.IntN(4) == 0 {
		if err := c.Reach(ctx, "sent", []byte("x")); err != nil {
			return false, errors.Join(err, c.Abort(ctx))
		}
	}
	result, err := w.effect(key, c)
	if err != nil {
		return false, err
	}
	if err := c.Complete(ctx, []byte(result)); err != nil {
		return false, errors.Join(err, c.Abort(ctx))
	}
	w.note("result %s %s", key, result)
	return true, nil
}

// keyOf returns the key of a number in the run of this folder, because runs may share a server.
func keyOf(dir, key string) idem.Key { return idem.Key{Scope: dir, ID: key} }

// effect has two effects: the first records the key and is applied by the first that comes, and the
// second is just appended.
func (w *worker) effect(key string, c *idem.Claim) (string, error) {
	me := fmt.Sprintf("%d-%d", os.Getpid(), c.Token())
	believe := func() {
		// The time is taken before the belief is asked for: the worker believed at that time.
		if now := time.Now(); c.Err() == nil {
			w.note("believes %s %d %d", key, now.UnixNano(), c.Token())
		}
	}
	believe()
	result, err := w.record(key, me)
	if err != nil {
		return "", err
	}
	w.note("effect %s", key)
	<-time.After(rand.N(10 * time.Millisecond)) // what an effect takes
	believe()
	return result, nil
}

// record applies an effect that records its key, in one step: it returns the first caller's name.
func (w *worker) record(key, me string) (string, error) {
	path := filepath.Join(w.dir, "effect-"+key)
	if err := os.Symlink(me, path); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return os.Readlink(path)
}

// callNaively looks whether the key is there, and writes it after the effect.
func (w *worker) callNaively(ctx context.Context, key string) (done bool, err error) {
	v := w.client.Value("naive" + w.dir + "/" + key)
	is, err := v.Get(ctx)
	if err != nil || is.Number != 0 {
		return err == nil, err
	}
	begun := time.Now().UnixNano() // stands for its token
	w.note("believes %s %d %d", key, begun, begun)
	w.note("effect %s", key)
	<-time.After(rand.N(10 * time.Millisecond)) // what an effect takes
	w.note("believes %s %d %d", key, time.Now().UnixNano(), begun)
	_, err = v.Put(ctx, []byte("done"), 0)
	return err == nil || errors.Is(err, pawl.ErrConflict), err
}
