package lb_test

import (
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/pawl-go/pawl/lb"
)

// where is the node of each key.
func where(t *testing.T, all []lb.Node, keys int) map[string]string {
	b, at := newBalancer(t, newSet(t, nil, all...), lb.SourceHash, nil), make(map[string]string)
	for i := range keys {
		key := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		at[key] = mustPick(t, b, lb.Request{Key: key}).Node().ID
	}
	return at
}

// TestKeysThatMove: when a node leaves, its keys move and no other; when a node comes, keys move to
// that node only. By remainder nearly all keys move.
func TestKeysThatMove(t *testing.T) {
	const keys = 100_000
	for name, all := range map[string][]lb.Node{"equal": numbered(10, 1), "weighted": nodes(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)} {
		whole, less := where(t, all, keys), where(t, all[:9], keys)
		gone, moved := all[9], 0
		for key, id := range whole {
			if id == less[key] {
				continue
			}
			if moved++; id != gone.ID {
				t.Fatalf("%s: key %s moved from %s to %s, without need", name, key, id, less[key])
			}
		}
		sum := 0
		for _, n := range all {
			sum += n.Weight
		}
		if most := float64(gone.Weight)/float64(sum) + 0.01; float64(moved)/keys > most || moved == 0 {
			t.Errorf("%s: %d of %d keys moved", name, moved, keys)
		}
	}
	moved := 0
	for i := range keys {
		h := fnv.New64a()
		fmt.Fprint(h, i)
		if h.Sum64()%10 != h.Sum64()%9 {
			moved++
		}
	}
	if moved < keys/5 {
		t.Errorf("the test finds nothing wrong with the remainder: %d of %d moved", moved, keys)
	}
}

// TestShares: a million keys are spread by weight within 1 %.
func TestShares(t *testing.T) {
	all, count, key := nodes(10, 20, 30, 40), make(map[string]float64), [4]byte{10}
	b := newBalancer(t, newSet(t, nil, all...), lb.SourceHash, nil)
	for i := range 1_000_000 {
		key[1], key[2], key[3] = byte(i>>16), byte(i>>8), byte(i)
		count[mustPick(t, b, lb.Request{Key: string(key[:])}).Node().ID]++
	}
	for _, n := range all {
		if share := count[n.ID] / 1_000_000 * 100 / float64(n.Weight); share < 0.99 || share > 1.01 {
			t.Errorf("%s got %.4f of its share", n.ID, share)
		}
	}
}

// TestSameEverywhere: processes of other versions find the same node for a key.
func TestSameEverywhere(t *testing.T) {
	for _, weights := range [][]int{{1, 1, 1, 1, 1}, {1, 2, 3, 4, 5}} {
		b := newBalancer(t, newSet(t, nil, nodes(weights...)...), lb.SourceHash, nil)
		got := ""
		for i := range 20 {
			got += mustPick(t, b, lb.Request{Key: fmt.Sprint("user/", i)}).Node().ID
		}
		if want := map[int]string{1: "dceabdcebcbccebbdbbb", 5: "dcecedcebcbecebbddbe"}[weights[4]]; got != want {
			t.Errorf("weights %v: the keys are at %s, want %s", weights, got, want)
		}
	}
}

// TestBound: requests of one key overflow to the next nodes of that key, so that no node has more than its bounded share.
func TestBound(t *testing.T) {
	all := nodes(1, 1, 2, 4)
	set := newSet(t, nil, all...)
	b := newBalancer(t, set, lb.SourceHash, &lb.Options{Bound: 1.25})
	for total := 1; total <= 400; total++ {
		n := mustPick(t, b, lb.Request{Key: "hot"}).Node()
		for _, is := range set.Nodes() {
			if most := 1.25*float64(total)*float64(is.Weight)/8 + 1; is.ID == n.ID && float64(is.InFlight) > most {
				t.Fatalf("%s has %d of %d requests, more than %.1f", is.ID, is.InFlight, total, most)
			}
		}
	}
	free := newBalancer(t, newSet(t, nil, all...), lb.SourceHash, nil)
	for range 400 {
		if got, want := mustPick(t, free, lb.Request{Key: "hot"}).Node(), mustPick(t, free, lb.Request{Key: "hot"}).Node(); got != want {
			t.Fatal("without a bound the key moved")
		}
	}
}
