package idemleasetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestSweepSparesALaterResult: Redis lists the parts page by page. A worker that completes the key between two pages
// has its parts on the later page. A sweep that decides by the record of the first page would remove the parts.
func TestSweepSparesALaterResult(t *testing.T) {
	t.Parallel()
	store, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(t).Addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	eng := redisengine.New(store, &redisengine.Options{Prefix: "sweep-" + idem.NewToken()})
	if err := eng.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	sweeper := faulty.New(eng)
	client, err := pawl.New(t.Context(), sweeper.Engine, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background()) //nolint:errcheck // nothing is lost
	other, err := pawl.New(t.Context(), sweeper, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background()) //nolint:errcheck // as above

	key := idem.Key{Scope: "sweep", ID: "a"}
	for i := range 3000 { // of dead workers, on more than one page
		if _, err := client.Scope("idem").Value(fmt.Sprintf("part/%s/DEAD%d/0", key.Name(), i)).Put(t.Context(), []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
	}
	leases, large := idem.NewLeases(client, nil), strings.Repeat("0123456789", idem.MaxResult/10)
	var once sync.Once
	sweeper.Set(func(ctx context.Context, do func(context.Context) error) error {
		err := do(ctx) // the sweep reads the record
		once.Do(func() {
			c, began := leases.Begin(ctx, key, idem.Fingerprint{}, nil)
			if began == nil {
				began = c.Complete(ctx, []byte(large))
			}
			if began != nil {
				t.Error(began)
			}
		})
		return err
	}, faulty.Get)
	if _, err := idem.NewLeases(other, nil).Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := leases.Begin(t.Context(), key, idem.Fingerprint{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if kept, is := c.Kept(); !is || string(kept) != large {
		t.Errorf("%v, %d bytes are kept", is, len(kept))
	}
}
