package lb_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/lb"
)

// TestLeast: in any sequence of picks and ends the pick is a node with the least load for its
// weight. A count beside the balancer says so.
func TestLeast(t *testing.T) {
	for _, p := range []lb.Policy{lb.LeastConnections, lb.WeightedLeastConnections} {
		random := rand.New(rand.NewPCG(5, 6))
		all := nodes(1, 2, 3, 10, 4)
		set := newSet(t, nil, all...)
		b := newBalancer(t, set, p, nil)
		count, open := make(map[string]int), []lb.Pick(nil)
		load := func(n lb.Node) float64 {
			if p == lb.LeastConnections {
				return float64(count[n.ID])
			}
			return float64(count[n.ID]) / float64(n.Weight)
		}
		for range 5000 {
			if len(open) > 0 && random.IntN(100) < 45 {
				i := random.IntN(len(open))
				count[open[i].Node().ID]--
				open[i].Done(lb.Succeeded)
				open = slices.Delete(open, i, i+1)
				continue
			}
			pick := mustPick(t, b, lb.Request{})
			for _, n := range all {
				if load(n) < load(pick.Node()) {
					t.Fatalf("%v picked %v with %v in flight", p, pick.Node(), count)
				}
			}
			count[pick.Node().ID]++
			open = append(open, pick)
		}
		for _, is := range set.Nodes() {
			if is.InFlight != count[is.ID] {
				t.Errorf("%v counts %d requests to %s, want %d", p, is.InFlight, is.ID, count[is.ID])
			}
		}
	}
}

// TestIdle: where all nodes are idle, requests one after another are spread by weight.
func TestIdle(t *testing.T) {
	for p, want := range map[lb.Policy]string{lb.LeastConnections: "a b c a b c a", lb.WeightedLeastConnections: "a a b a c a a"} {
		b := newBalancer(t, newSet(t, nil, nodes(5, 1, 1)...), p, &lb.Options{Rand: zero})
		if got := fmt.Sprint(order(t, b, 7)); got != "["+want+"]" {
			t.Errorf("%v: %v", p, got)
		}
	}
}

// fleet is nodes with slots, and an unbounded queue before them. A request takes ten milliseconds,
// and on a slow node ten times as long.
type fleet map[string]*server

type server struct {
	slots chan struct{}
	takes time.Duration
}

// simulate sends requests that arrive at random at 70 % of what ten nodes serve. simulate returns
// the latencies in order.
func simulate(t *testing.T, p lb.Policy, slow bool) (took []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		const slots, service, requests = 16, 10 * time.Millisecond, 30_000
		all, at := numbered(10, 1), make(fleet)
		for i, n := range all {
			at[n.ID] = &server{make(chan struct{}, slots), service}
			if slow && i == 3 {
				at[n.ID].takes *= 10
			}
		}
		random := rand.New(rand.NewPCG(8, 9))
		set := newSet(t, nil, all...)
		b := newBalancer(t, set, p, &lb.Options{Rand: seeded(10)})
		every := float64(service) / (10 * slots * 0.7)
		var mu sync.Mutex
		var running sync.WaitGroup
		for range requests {
			<-time.After(time.Duration(random.ExpFloat64() * every))
			pick := mustPick(t, b, lb.Request{})
			running.Go(func() {
				began, is := time.Now(), at[pick.Node().ID]
				is.slots <- struct{}{}
				<-time.After(is.takes)
				<-is.slots
				pick.Done(lb.Succeeded)
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			})
		}
		running.Wait()
	})
	slices.Sort(took)
	return took
}

func percentile(sorted []time.Duration, p float64) float64 {
	return float64(sorted[int(p/100*float64(len(sorted)))])
}

// TestSlowNode: of ten nodes one becomes ten times slower. Policies that look at the load keep their
// latency, which round robin does not.
func TestSlowNode(t *testing.T) {
	for _, row := range []struct {
		policy      lb.Policy
		p           float64
		least, most float64 // times the latency without a slow node
	}{
		{lb.PeakEWMA, 99, 0, 1.3},
		{lb.PowerOfTwo, 95, 0, 1.3},
		{lb.LeastConnections, 95, 0, 1.3},
		{lb.RoundRobin, 99, 5, math.Inf(1)},
	} {
		well, slow := simulate(t, row.policy, false), simulate(t, row.policy, true)
		times := percentile(slow, row.p) / percentile(well, row.p)
		t.Logf("%v: p%v is %.2f times that without a slow node", row.policy, row.p, times)
		if times < row.least || times > row.most {
			t.Errorf("%v: want %v to %v", row.policy, row.least, row.most)
		}
	}
}

// TestFailingFast: a node that fails at once is not the fastest for PeakEWMA.
func TestFailingFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer(t, newSet(t, &lb.SetOptions{EjectAfter: -1}, nodes(1, 1, 1, 1, 1)...), lb.PeakEWMA, &lb.Options{Rand: seeded(1)})
		failed := 0
		for range 1000 {
			p := mustPick(t, b, lb.Request{})
			if p.Node().ID == "c" {
				failed++
				p.Done(lb.Failed)
				continue
			}
			<-time.After(10 * time.Millisecond)
			p.Done(lb.Succeeded)
		}
		if failed > 50 {
			t.Errorf("%d of 1000 requests went to the node that fails", failed)
		}
	})
}

// TestLatency: the latency is the time to the answer, and not that of a stream after the answer. A caller that gives up
// before the answer makes a node slower that is known, and never faster. Else a node that hangs would look better and better.
func TestLatency(t *testing.T) {
	const quick, long = 10 * time.Millisecond, time.Hour
	for _, row := range []struct {
		name   string
		after  time.Duration // to the answer; -1: there is none; -2: nor is there one, and the node is known to be quick
		took   time.Duration
		result lb.Result
		want   time.Duration
	}{
		{"answer", quick, quick, lb.Succeeded, quick},
		{"stream", quick, long, lb.Succeeded, quick},
		{"stream that the caller ends", quick, long, lb.Canceled, quick},
		{"stream that breaks", quick, long, lb.Failed, 2 * quick},
		{"answer after an unknown time", 0, long, lb.Succeeded, 0},
		{"end alone", -1, quick, lb.Succeeded, quick},
		{"caller gives up", -1, long, lb.Canceled, 0},
		{"caller gives up on a node that is known", -2, long, lb.Canceled, long},
		{"caller gives up soon on a node that is known", -2, quick / 2, lb.Canceled, quick},
		{"failure", -1, long, lb.Failed, long},
	} {
		synctest.Test(t, func(t *testing.T) {
			set := newSet(t, nil, nodes(1)...)
			b := newBalancer(t, set, lb.PeakEWMA, nil)
			if row.after == -2 {
				mustPick(t, b, lb.Request{}).Answered(quick).Done(lb.Succeeded)
			}
			pick := mustPick(t, b, lb.Request{})
			time.Sleep(row.took)
			if row.after >= 0 {
				pick = pick.Answered(row.after).Answered(long)
			}
			pick.Done(row.result)
			if is := set.Nodes()[0]; (is.Latency-row.want).Abs() > row.want/1_000_000 || is.InFlight != 0 {
				t.Errorf("%s: %+v, want the latency %v", row.name, is, row.want)
			}
		})
	}
}
