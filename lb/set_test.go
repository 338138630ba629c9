package lb_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/lb"
)

// share returns how many of n picks went to the node.
func share(t *testing.T, b *lb.Balancer, id string, n int) (count int) {
	t.Helper()
	for _, is := range order(t, b, n) {
		if is == id {
			count++
		}
	}
	return count
}

// fail sends requests until the node has failed n times, without a success between.
func fail(t *testing.T, b *lb.Balancer, id string, n int) {
	t.Helper()
	for n > 0 {
		p := mustPick(t, b, lb.Request{})
		if p.Node().ID != id {
			p.Done(lb.Succeeded)
			continue
		}
		p.Done(lb.Failed)
		n--
	}
}

// TestEjection: a node that fails is out, comes back, and is out for longer the next time. A success
// in between, and a request that was canceled, takes no node out.
func TestEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t, &lb.SetOptions{EjectAfter: 3, EjectFor: time.Second}, nodes(1, 1, 1, 1)...)
		b := newBalancer(t, set, lb.RoundRobin, nil)
		fail(t, b, "b", 2)
		order(t, b, 8)
		fail(t, b, "b", 2)
		if share(t, b, "b", 8) != 2 {
			t.Error("four failures with a success between took the node out")
		}
		for i, out := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
			fail(t, b, "b", 3)
			if share(t, b, "b", 8) != 0 || !set.Nodes()[1].Ejected {
				t.Errorf("ejection %d: the node is picked", i)
			}
			pass(out - time.Millisecond)
			if share(t, b, "b", 8) != 0 {
				t.Errorf("ejection %d: the node is back too early", i)
			}
			pass(2 * time.Millisecond)
			if share(t, b, "b", 8) != 2 {
				t.Errorf("ejection %d: the node is not back", i)
			}
		}
		pass(time.Minute)
		fail(t, b, "b", 3)
		pass(time.Second + time.Millisecond)
		if share(t, b, "b", 8) != 2 {
			t.Error("after a minute without failures the node is out for longer than at first")
		}
	})
}

// pass lets the fake time of a bubble go on.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestPanic: when most nodes fail, all nodes are used.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer(t, newSet(t, &lb.SetOptions{EjectAfter: 1}, nodes(1, 1, 1, 1)...), lb.RoundRobin, nil)
		fail(t, b, "a", 1)
		fail(t, b, "b", 1)
		if share(t, b, "a", 8) != 0 || share(t, b, "c", 8) != 4 {
			t.Error("half of the nodes are well, and others are picked")
		}
		fail(t, b, "c", 1)
		for _, id := range []string{"a", "b", "c", "d"} {
			if share(t, b, id, 8) != 2 {
				t.Errorf("one of four nodes is well, and %s is not picked as often as others", id)
			}
		}
		pass(time.Minute)
	})
}

// TestReturned: the user of a set is told when there is a node again after all were ejected, and not of any other return.
func TestReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		set := newSet(t, &lb.SetOptions{EjectAfter: 1, EjectFor: time.Second, Panic: -1, Returned: func() { told++ }}, nodes(1, 1)...)
		b := newBalancer(t, set, lb.RoundRobin, nil)
		fail(t, b, "a", 1)
		pass(2 * time.Second)
		if told != 0 {
			t.Errorf("told %d times, and one node was there all the time", told)
		}
		for range 2 {
			mustPick(t, b, lb.Request{}).Done(lb.Failed)
		}
		if _, err := b.Pick(lb.Request{}); err == nil {
			t.Fatal("a node is left")
		}
		pass(3 * time.Second)
		if told != 1 {
			t.Errorf("told %d times after all were out", told)
		}
	})
}

// TestSlowStart: a node that comes to others rises in steps to its share.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t, &lb.SetOptions{SlowStart: 10 * time.Second}, nodes(1)...)
		b := newBalancer(t, set, lb.WeightedRoundRobin, nil)
		if err := set.Update(nodes(1, 1)...); err != nil {
			t.Fatal(err)
		}
		for s, want := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10} { // of ten for the other node
			cycle := 10 + want
			if got := share(t, b, "b", 10*cycle); got != 10*want {
				t.Errorf("after %d s the node got %d of %d", s, got, 10*cycle)
			}
			pass(time.Second)
		}
	})
}

// TestUpdateKeeps: requests in flight and latencies survive an update, by the ID of the node.
func TestUpdateKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t, nil, nodes(1)...)
		b := newBalancer(t, set, lb.PeakEWMA, nil)
		first, second := mustPick(t, b, lb.Request{}), mustPick(t, b, lb.Request{})
		pass(time.Second)
		first.Done(lb.Succeeded)
		if err := set.Update(lb.Node{ID: "x"}, lb.Node{ID: "a", Addr: "10.0.0.9:80", Weight: 7}); err != nil {
			t.Fatal(err)
		}
		is := set.Nodes()[1]
		if off := is.Latency - time.Second; is.InFlight != 1 || is.Addr != "10.0.0.9:80" || off.Abs() > time.Millisecond {
			t.Errorf("after the update the node is %+v", is)
		}
		second.Done(lb.Canceled)
		if n := set.Nodes()[1].InFlight; n != 0 {
			t.Errorf("%d requests are in flight", n)
		}
	})
}
