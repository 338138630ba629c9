package redisid

import (
	"context"
	"testing"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestLateGrant: a late reserve counts for nothing when another client has the claim by then, or
// the key was lost. So no numbers come after larger ones.
func TestLateGrant(t *testing.T) {
	server := testservers.Redis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	store, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(context.Background()) //nolint:errcheck // it is in memory
	registers, err := id.Values(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(client, "ids", &Options{Mark: registers.Mark("ids")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background()) //nolint:errcheck // nothing is under way
	for name, since := range map[string]func() error{
		"taken over": func() error { return nil },
		"flushed":    func() error { return client.Do(t.Context(), client.B().Flushall().Build()).Error() },
	} {
		if err := client.Do(t.Context(), client.B().Flushall().Build()).Error(); err != nil {
			t.Fatal(err)
		}
		slow := name + " of a slow client"
		if r, err := c.run(t.Context(), claimScript, slow, "50", "1", ""); err != nil || r.is != 1 {
			t.Fatal(r, err)
		}
		from, to, err := c.raise(t.Context(), 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		before, err := c.Add(t.Context(), 1) // which waits for the claim to end
		if err != nil || before <= to {
			t.Fatal(before, err)
		}
		if err := since(); err != nil {
			t.Fatal(err)
		}
		r, err := grantScript.Exec(t.Context(), client, []string{"ids"}, []string{slow, text(from), text(to), text(to - from), "a life"}).AsInt64()
		if err != nil || r != 0 {
			t.Errorf("%s: the grant was taken: %d, %v", name, r, err)
		}
		if after, err := c.Add(t.Context(), 1); err != nil || after <= before {
			t.Errorf("%s: %d after %d, %v", name, after, before, err)
		}
	}
}
