package processtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/work"
)

const poison = "poison"

func init() { roles[poison] = dieOfPoison }

// dieOfPoison is a worker that one of the items kills.
func dieOfPoison(ctx context.Context, c *pawl.Client, args ...string) error {
	p := work.New(c, args[0], &work.Options{MaxAttempts: 3})
	for {
		item, err := p.Claim(ctx)
		if err != nil {
			return err
		}
		if string(item.Data) == poison {
			say(poison, item.Attempts)
			self, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			self.Kill() //nolint:errcheck // if that fails, the worker does not end, and the test says so
			select {}
		}
		say("did", string(item.Data))
		if err := item.Done(ctx); err != nil {
			say("lost", err)
		}
	}
}

// TestQueuePoison: an item that kills its worker kills three workers. Then the item is a dead
// letter with its number of attempts, although no worker could report one. The other items are done
// meanwhile.
func TestQueuePoison(t *testing.T) {
	overStores(t, time.Second, func(f *fleet) {
		const items = 30
		name := rand.Text()
		p := work.New(f.client, name, nil)
		all := [][]byte{[]byte(poison)}
		for i := range items {
			all = append(all, fmt.Appendf(nil, "item %d", i))
		}
		if err := p.Put(f.Context(), all...); err != nil {
			f.Fatal(err)
		}
		for range 3 {
			f.start(poison, name)
		}
		done := make(map[string]bool)
		var attempts []string
		for len(done) < items || len(attempts) < 3 {
			switch l := f.next(); l.what {
			case poison:
				attempts = append(attempts, l.more)
				f.gone(l.from)
				f.start(poison, name)
			case "did":
				done[l.more] = true
			case "lost": // on a busy machine; the item is done again
			default:
				f.Fatalf("%+v", l)
			}
		}
		letters := p.DeadLetters()
		for n, deadline := 0, time.Now().Add(time.Minute); n == 0; time.Sleep(10 * time.Millisecond) {
			var err error
			if n, err = letters.Len(f.Context()); err != nil || time.Now().After(deadline) {
				f.Fatalf("no dead letter: %v", err)
			}
		}
		for l, err := range letters.All(f.Context()) {
			if err != nil || string(l.Data) != poison || l.Attempts != 3 || !strings.HasSuffix(l.Name, ".0") {
				f.Errorf("dead letter %+v, %v", l, err)
			}
			if err := letters.Drop(f.Context(), l.ID); err != nil {
				f.Error(err)
			}
		}
		if is := strings.Join(attempts, " "); is != "1 2 3" {
			f.Errorf("attempts %s", is)
		}
		for n, err := p.Len(f.Context()); n > 0 || err != nil; n, err = p.Len(f.Context()) { // a lost item is done again
			if err != nil {
				f.Fatal(err)
			}
		}
	})
}
