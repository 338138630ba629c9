package redisstock

import (
	"fmt"
	"testing"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/internal/testservers"
)

// steps are those of a move, one for each request, as a client takes them that may be frozen
// between any two of them.
func (s *Stock) steps(t *testing.T, loan string, amount int64) []func() {
	ctx := t.Context()
	var p part
	var arrived bool
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return []func(){
		func() {
			check(s.client.Do(ctx, s.client.B().Set().Key(s.key(1, "loan:"+loan)).Value("open").Px(opened).Build()).Error())
		},
		func() { var err error; p, err = s.lend(ctx, 0, 1, loan, amount); check(err) },
		func() {
			var err error
			if p.lent > 0 {
				arrived, err = s.yes(ctx, depositScript, 1, s.key(1, "loan:"+loan), text(p.lent))
			}
			check(err)
		},
		func() {
			if p.lent > 0 {
				check(s.settle(ctx, 0, 1, loan, arrived))
			}
		},
	}
}

// sums returns all units, wherever they are, after the loans were ended.
func (s *Stock) sums(t *testing.T) (n int64) {
	all, err := s.looks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		n += p.free + p.reserved
	}
	return n
}

// TestDeadMover: a client that dies after any step of a move loses no unit and doubles none, and
// the next sweep can take all units.
func TestDeadMover(t *testing.T) {
	client := dialOne(t)
	for dies := range 5 {
		s, err := New(client, fmt.Sprint(t.Name(), dies), &Options{Parts: 2})
		if err == nil {
			err = s.Put(t.Context(), "first", 20)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range s.steps(t, "dead", 7)[:dies] {
			step()
		}
		if is, err := s.Total(t.Context()); err != nil || is.Free != 20 {
			t.Errorf("died after %d steps: %+v, %v", dies, is, err)
		}
		if err := s.Reserve(t.Context(), "all", 20); err != nil {
			t.Errorf("died after %d steps: %v", dies, err)
		}
	}
}

// TestLateMover: a client that is frozen in a move goes on while another ends its loan. Over all
// orders of their requests no unit is lost or doubled.
func TestLateMover(t *testing.T) {
	client := dialOne(t)
	orders := 0
	var explore func(order []int)
	explore = func(order []int) {
		late, next := 0, 0
		for _, who := range order {
			late, next = late+1-who, next+who
		}
		if late < 4 {
			explore(append(order[:len(order):len(order)], 0))
		}
		if next < 3 {
			explore(append(order[:len(order):len(order)], 1))
		}
		if late < 4 || next < 3 {
			return
		}
		orders++
		s, err := New(client, fmt.Sprint(t.Name(), orders), &Options{Parts: 2})
		if err == nil {
			err = s.Put(t.Context(), "first", 20)
		}
		if err != nil {
			t.Fatal(err)
		}
		all := [2][]func(){s.steps(t, "late", 7), s.resolves(t)}
		for _, who := range order {
			all[who][0]()
			all[who] = all[who][1:]
		}
		if n := s.sums(t); n != 20 {
			t.Errorf("%v: %d units", order, n)
		}
	}
	explore(nil)
	if orders != 35 {
		t.Errorf("%d orders", orders)
	}
}

// resolves are the steps of a client that ends the loans that it sees.
func (s *Stock) resolves(t *testing.T) []func() {
	ctx := t.Context()
	var loans map[string]string
	arrived := make(map[string]bool)
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return []func(){
		func() { p, err := s.lend(ctx, 0, 0, "", 0); check(err); loans = p.loans },
		func() {
			for loan := range loans {
				is, err := s.yes(ctx, refuseScript, 1, s.key(1, "loan:"+loan))
				check(err)
				arrived[loan] = is
			}
		},
		func() {
			for loan := range loans {
				check(s.settle(ctx, 0, 1, loan, arrived[loan]))
			}
		},
	}
}

func dialOne(t *testing.T) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(t).Addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
