package lb_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/lb"
)

var all = []lb.Policy{lb.RoundRobin, lb.WeightedRoundRobin, lb.LeastConnections, lb.WeightedLeastConnections, lb.Random,
	lb.WeightedRandom, lb.SourceHash, lb.PowerOfTwo, lb.PeakEWMA}

// seeded returns random numbers that come again. One goroutine at a time may use them.
func seeded(seed uint64) func() uint64 { return rand.New(rand.NewPCG(seed, 1)).Uint64 }

func zero() uint64 { return 0 }

// nodes are named a, b, ... and have these weights.
func nodes(weights ...int) (all []lb.Node) {
	for i, w := range weights {
		all = append(all, lb.Node{ID: string(rune('a' + i)), Addr: fmt.Sprintf("10.0.0.%d:80", i), Weight: w})
	}
	return all
}

func numbered(n, weight int) (all []lb.Node) {
	for i := range n {
		all = append(all, lb.Node{ID: fmt.Sprint("node ", i), Weight: weight})
	}
	return all
}

func newSet(t testing.TB, opts *lb.SetOptions, nodes ...lb.Node) *lb.Set {
	t.Helper()
	set, err := lb.NewSet(opts, nodes...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newBalancer(t testing.TB, set *lb.Set, p lb.Policy, opts *lb.Options) *lb.Balancer {
	t.Helper()
	b, err := lb.New(set, p, opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustPick(t testing.TB, b *lb.Balancer, r lb.Request) lb.Pick {
	t.Helper()
	p, err := b.Pick(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// order is the IDs of n picks.
func order(t *testing.T, b *lb.Balancer, n int) (ids []string) {
	t.Helper()
	for range n {
		p := mustPick(t, b, lb.Request{})
		ids = append(ids, p.Node().ID)
		p.Done(lb.Succeeded)
	}
	return ids
}

// nginx is the loop of ngx_http_upstream_get_peer, without failures.
func nginx(all []lb.Node, n int) (ids []string) {
	current := make([]int, len(all))
	for range n {
		best, total := -1, 0
		for i, node := range all {
			current[i] += node.Weight
			total += node.Weight
			if best < 0 || current[i] > current[best] {
				best = i
			}
		}
		current[best] -= total
		ids = append(ids, all[best].ID)
	}
	return ids
}

// TestOrderOfNginx: the picks come in the order of nginx, also with any weights.
func TestOrderOfNginx(t *testing.T) {
	b := newBalancer(t, newSet(t, nil, nodes(5, 1, 1)...), lb.WeightedRoundRobin, &lb.Options{Rand: zero})
	if got := strings.Join(order(t, b, 14), " "); got != "a a b a c a a a a b a c a a" {
		t.Errorf("weights 5, 1, 1: %s", got)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var weights []int
		for range 1 + random.IntN(8) {
			weights = append(weights, 1+random.IntN(40))
		}
		b := newBalancer(t, newSet(t, nil, nodes(weights...)...), lb.WeightedRoundRobin, &lb.Options{Rand: zero})
		if got, want := order(t, b, 500), nginx(nodes(weights...), 500); !slices.Equal(got, want) {
			t.Errorf("weights %v: %v, want %v", weights, got, want)
		}
	}
}

// TestCycles: each cycle has exactly as many picks of a node as its weight says. At any time
// within a cycle a node is less than two picks from its share.
func TestCycles(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	many := numbered(300, 1)
	for i := range many {
		many[i].Weight = 1 + random.IntN(200)
	}
	for name, all := range map[string][]lb.Node{"by table": nodes(7, 3, 100, 41), "by deadline": many, "without table": nodes(65_535, 65_534, 1, 777)} {
		cycle, count := 0, make(map[string]int)
		for _, n := range all {
			cycle += n.Weight
		}
		b := newBalancer(t, newSet(t, nil, all...), lb.WeightedRoundRobin, &lb.Options{Rand: zero})
		for k := 1; k <= 2*cycle; k++ {
			p := mustPick(t, b, lb.Request{})
			count[p.Node().ID]++
			share := float64(k) * float64(p.Node().Weight) / float64(cycle)
			if off := float64(count[p.Node().ID]) - share; off < -2 || off > 2 {
				t.Fatalf("%s: after %d picks %q was picked %.1f times too often", name, k, p.Node().ID, off)
			}
			if k%cycle != 0 {
				continue
			}
			for _, n := range all {
				if count[n.ID] != n.Weight*k/cycle {
					t.Errorf("%s: %d picks of %q with weight %d after %d cycles", name, count[n.ID], n.ID, n.Weight, k/cycle)
				}
			}
		}
	}
}

// chiSquare is the sum of the squared errors, each divided by the expected count.
func chiSquare(count map[string]int, all []lb.Node, picks int, weighted bool) (sum float64) {
	total := 0
	for _, n := range all {
		total += n.Weight
	}
	for _, n := range all {
		want := float64(picks) / float64(len(all))
		if weighted {
			want = float64(picks) * float64(n.Weight) / float64(total)
		}
		sum += (float64(count[n.ID]) - want) * (float64(count[n.ID]) - want) / want
	}
	return sum
}

// TestChances: random picks pass a chi-square test with nine degrees of freedom, where 21.67 has a
// chance of 1 %. Random numbers that end in the remainder of a byte fail the test. The weights are kept within 1 %.
func TestChances(t *testing.T) {
	const picks = 1_000_000
	all := nodes(5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
	for _, p := range []lb.Policy{lb.Random, lb.WeightedRandom} {
		b := newBalancer(t, newSet(t, nil, all...), p, &lb.Options{Rand: seeded(7)})
		count := make(map[string]int)
		for range picks {
			count[mustPick(t, b, lb.Request{}).Node().ID]++
		}
		if x := chiSquare(count, all, picks, p == lb.WeightedRandom); x > 21.67 {
			t.Errorf("%v: chi-square is %.1f", p, x)
		}
		for _, n := range all {
			if share := float64(count[n.ID]) / picks * 95 / float64(n.Weight); p == lb.WeightedRandom && (share < 0.99 || share > 1.01) {
				t.Errorf("%v: %q got %.4f of its share", p, n.ID, share)
			}
		}
	}
	naive, random := make(map[string]int), seeded(7)
	for range picks {
		naive[all[int(byte(random()))%len(all)].ID]++
	}
	if x := chiSquare(naive, all, picks, false); x < 21.67 {
		t.Errorf("the test finds nothing wrong with the remainder of a byte: %.1f", x)
	}
}

// TestAll: with every policy a request that tries again gets each node once, and then no node.
func TestAll(t *testing.T) {
	for _, p := range all {
		if parsed, err := lb.ParsePolicy(p.String()); parsed != p || err != nil {
			t.Errorf("%v was parsed as %v, %v", p, parsed, err)
		}
		for _, bound := range []float64{0, 1.25} {
			set := newSet(t, nil)
			b := newBalancer(t, set, p, &lb.Options{Bound: bound})
			if _, err := b.Pick(lb.Request{}); !errors.Is(err, lb.ErrNoNode) {
				t.Errorf("%v of an empty set: %v", p, err)
			}
			if err := set.Update(nodes(1, 60, 3, 1, 9)...); err != nil {
				t.Fatal(err)
			}
			tried, seen := &lb.Tried{}, make(map[string]bool)
			for range 5 {
				pick := mustPick(t, b, lb.Request{Key: "k", Tried: tried})
				tried.Add(pick)
				seen[pick.Node().ID] = true
				pick.Done(lb.Canceled)
			}
			if len(seen) != 5 || tried.Len() != 5 {
				t.Errorf("%v: five tries got %v", p, seen)
			}
			if _, err := b.Pick(lb.Request{Key: "k", Tried: tried}); !errors.Is(err, lb.ErrNoNode) {
				t.Errorf("%v after all nodes were tried: %v", p, err)
			}
		}
	}
}

// TestNoAllocation: a pick with its end allocates nothing.
func TestNoAllocation(t *testing.T) {
	for _, p := range all {
		b := newBalancer(t, newSet(t, nil, nodes(1, 2, 3, 4)...), p, nil)
		if n := testing.AllocsPerRun(100, func() {
			pick, _ := b.Pick(lb.Request{Key: "10.1.2.3"})
			pick.Answered(1).Done(lb.Succeeded)
		}); n != 0 {
			t.Errorf("%v: %v allocations", p, n)
		}
	}
}

// TestInvalid: a mistake names its field, and changes nothing.
func TestInvalid(t *testing.T) {
	set := newSet(t, nil, nodes(1)...)
	_, err1 := lb.New(set, lb.SourceHash, &lb.Options{Bound: 0.5})
	_, err2 := lb.New(set, lb.PeakEWMA, &lb.Options{Tau: 1})
	_, err3 := lb.New(set, 77, nil)
	_, err4 := lb.ParsePolicy("fastest")
	_, err5 := lb.NewSet(&lb.SetOptions{EjectAfter: -2})
	_, err6 := lb.NewSet(&lb.SetOptions{EjectFor: 1})
	_, err7 := lb.NewSet(&lb.SetOptions{SlowStart: -1})
	_, err8 := lb.NewSet(&lb.SetOptions{Panic: 2})
	err9 := set.Update(lb.Node{ID: "b"}, lb.Node{ID: "c", Weight: -1})
	err10 := set.Update(lb.Node{ID: "b"}, lb.Node{Addr: "b"})
	for i, want := range []struct {
		err   error
		field string
	}{{err1, "Bound"}, {err2, "Tau"}, {err3, "policy"}, {err4, "round-robin"}, {err5, "EjectAfter"}, {err6, "EjectFor"},
		{err7, "SlowStart"}, {err8, "Panic"}, {err9, "Weight"}, {err10, "ID"}} {
		if !errors.Is(want.err, pawl.ErrInvalid) || !strings.Contains(want.err.Error(), want.field) {
			t.Errorf("mistake %d: %v", i+1, want.err)
		}
	}
	if is := set.Nodes(); len(is) != 1 || is[0].ID != "a" {
		t.Errorf("the nodes are %v", is)
	}
}

// TestChurn: while nodes come and go, no pick that begins after an update gets a node that is gone.
// At the end no request is in flight.
func TestChurn(t *testing.T) {
	for _, p := range all {
		set := newSet(t, nil, numbered(8, 1)...)
		b := newBalancer(t, set, p, nil)
		var users sync.WaitGroup
		for range 4 {
			users.Go(func() {
				for range 2000 {
					if p, err := b.Pick(lb.Request{Key: "k"}); err == nil {
						p.Done(lb.Succeeded)
					}
				}
			})
		}
		for i := range 200 {
			kept := numbered(8, 1+i%3)[i%7:]
			if err := set.Update(kept...); err != nil {
				t.Fatal(err)
			}
			pick := mustPick(t, b, lb.Request{Key: fmt.Sprint(i)})
			if !slices.Contains(kept, pick.Node()) {
				t.Fatalf("%v picked %v of %v", p, pick.Node(), kept)
			}
			pick.Done(lb.Succeeded)
		}
		users.Wait()
		for _, n := range set.Nodes() {
			if n.InFlight != 0 {
				t.Errorf("%v: %d requests to %s are in flight", p, n.InFlight, n.ID)
			}
		}
	}
}
