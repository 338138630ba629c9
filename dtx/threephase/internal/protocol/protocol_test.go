package protocol

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var soak = os.Getenv("PAWL_TEST_SOAK") != ""

// most is how many states an exploration holds in less than 2 GB of memory.
const most = 8_000_000

func splits(w *world) string { return w.split() }

// TestQuorum takes every order of the steps of all agents. Each agent may crash and restart anywhere, and any number of times. Each
// message may be lost, late or repeated, so each partition is among the orders. The bound is the number of elections.
func TestQuorum(t *testing.T) {
	t.Parallel()
	var rows [][]text
	for _, c := range []struct {
		agents          int8
		elections, long Election
	}{{3, 7, 10}, {4, 3, 6}, {5, 2, 4}} {
		if soak {
			c.elections = c.long
		}
		x, begin := explorer{elections: c.elections}, time.Now()
		var reached [Aborted + 1][Aborted + 1]bool
		got := x.explore(first(Quorum, c.agents), most, func(w *world) string {
			w.reach(&reached)
			return w.split()
		})
		if !reached[Committed][PreAborted] && c.agents == 3 || !reached[Aborted][PreCommitted] || !reached[Committed][Committed] {
			t.Errorf("%d agents: too little happens: %v", c.agents, reached)
		}
		rows = append(rows, []text{number(int(c.agents)), number(int(c.elections)), number(got.states), number(0)})
		t.Logf("%d agents, elections 1 to %d: %d states in %v", c.agents, c.elections, got.states, time.Since(begin).Round(time.Millisecond))
		if got.fault != "" || !got.whole {
			t.Errorf("%q, whole: %v\n%s", got.fault, got.whole, x.tell(first(Quorum, c.agents), got.trail))
		}
	}
	if !soak && !t.Failed() { // the page has the shorter bounds
		onPage(t, "states", table(stateColumns, rows))
	}
}

// reach notes the phases that two agents have at once.
func (w *world) reach(pairs *[Aborted + 1][Aborted + 1]bool) {
	for i := range w.n {
		for j := range i {
			a, b := w.agents[i].Phase, w.agents[j].Phase
			pairs[a][b], pairs[b][a] = true, true
		}
	}
}

// TestClean: the messages that the explorer takes away make no difference. All records that agents can have stay the same.
func TestClean(t *testing.T) {
	t.Parallel()
	elections := Election(3)
	if soak {
		elections = 4
	}
	records := func(keeps bool) map[[mostAgents]Record]bool {
		all := make(map[[mostAgents]Record]bool)
		x := explorer{elections: elections, keeps: keeps}
		got := x.explore(first(Quorum, 3), most, func(w *world) string {
			var r [mostAgents]Record
			for i := range w.n {
				if r[i] = w.agents[i].Record; r[i].Phase.Final() {
					r[i] = Record{Phase: r[i].Phase}
				}
			}
			all[r] = true
			return w.split()
		})
		t.Logf("messages are kept: %v; %d states, %d combinations of records", keeps, got.states, len(all))
		if got.fault != "" || !got.whole {
			t.Errorf("%q, whole: %v", got.fault, got.whole)
		}
		return all
	}
	cleaned, kept := records(false), records(true)
	for r := range kept {
		if !cleaned[r] {
			t.Fatalf("only with all messages: %+v", r)
		}
	}
	if len(cleaned) != len(kept) {
		t.Errorf("%d combinations of records, and %d with all messages", len(cleaned), len(kept))
	}
}

// TestWalks follows random steps further than all steps can be followed.
func TestWalks(t *testing.T) {
	t.Parallel()
	walks := 2_000
	if soak {
		walks = 1_000_000
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := int8(3); n <= mostAgents; n++ {
		x, taken := explorer{elections: mostElections}, 0
		decided := make(map[Phase]int)
		for range walks {
			w := first(Quorum, n)
			var trail []step
			for range 300 {
				all := x.all(&w)
				if len(all) == 0 {
					break
				}
				st := all[random.IntN(len(all))]
				if st.event.Kind == TimeOut && random.IntN(8) > 0 || st.event.Kind == VoteNo && random.IntN(8) > 0 {
					continue // else hardly any walk votes yes, or stays long
				}
				trail = append(trail, st)
				if w = x.take(w, st); w.split() != "" {
					t.Fatalf("%s\n%s", w.split(), x.tell(first(Quorum, n), trail))
				}
			}
			taken += len(trail)
			decided[w.agents[0].Phase]++
		}
		t.Logf("%d agents, elections 1 to %d: %d walks with %d steps, %d committed and %d aborted", n, mostElections, walks, taken, decided[Committed], decided[Aborted])
		if decided[Committed] == 0 || decided[Aborted] == 0 {
			t.Error("all walks end alike")
		}
	}
}

// TestSplits: the textbook's way splits, and so does each naive way of the other mode. The shortest trail is told.
func TestSplits(t *testing.T) {
	var rows [][]text
	for _, c := range splitRows {
		t.Run(c.name[english], func(t *testing.T) {
			x := explorer{elections: c.elections, way: c.way}
			got := x.explore(first(c.mode, c.agents), most, splits)
			if got.fault == "" {
				t.Fatalf("not found wrong in %d states", got.states)
			}
			t.Logf("%s, after %d states:\n%s", got.fault, got.states, x.tell(first(c.mode, c.agents), got.trail))
			rows = append(rows, []text{c.name, number(len(got.trail)), number(got.states)})
		})
	}
	if len(rows) == len(splitRows) { // else -run chose some
		onPage(t, "splits", table(splitColumns, rows))
	}
}
