package redisstock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/idem/redisstock"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestManyExpire: one script ends at most 100 expired reservations. A caller that wants the units of more of them gets
// these, and is not told that they are sold out.
func TestManyExpire(t *testing.T) {
	t.Parallel()
	client := dial(t, testservers.SharedRedis(t).Addr)
	for _, parts := range []int{1, 3} {
		s, err := redisstock.New(client, fmt.Sprintf("%s/%d", t.Name(), parts), &redisstock.Options{Parts: parts, Hold: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, "all", 900)
		for i := range 900 {
			if err := s.Reserve(t.Context(), fmt.Sprint("old", i), 1); err != nil {
				t.Fatal(err)
			}
		}
		for part := range parts { // an hour goes by
			due := fmt.Sprintf("pawl:stock:{%s/%d/%d}:due", t.Name(), parts, part)
			if err := client.Do(t.Context(), client.B().Zunionstore().Destination(due).Numkeys(1).Key(due).Weights(0).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Reserve(t.Context(), "new", 900); err != nil {
			t.Errorf("%d parts: %v", parts, err)
		}
		totals(t, s, 0, 900)
	}
}

// TestLostAmounts: a part whose reservations somebody deleted goes on with the units that it knows.
func TestLostAmounts(t *testing.T) {
	t.Parallel()
	client := dial(t, testservers.SharedRedis(t).Addr)
	s, err := redisstock.New(client, t.Name(), &redisstock.Options{Parts: 1, Hold: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "all", 9)
	if err := s.Reserve(t.Context(), "lost", 4); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Do(t.Context(), client.B().Del().Key("pawl:stock:{TestLostAmounts/0}:held").Build()).AsInt64(); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	<-time.After(10 * time.Millisecond) // the time of Redis decides: it runs on this machine
	if err := s.Reserve(t.Context(), "next", 5); err != nil {
		t.Error(err)
	}
}
