package protocol

import (
	"math/rand/v2"
	"os"
	"slices"
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
	for _, c := range []struct {
		agents          int8
		elections, long Election
	}{{3, 7, 10}, {4, 3, 6}, {5, 2, 4}} {
		if soak {
			c.elections = c.long
		}
		x, begin := explorer{elections: c.elections}, time.Now()
		got := x.explore(first(Quorum, c.agents), most, splits)
		t.Logf("%d agents, elections 1 to %d: %d states in %v", c.agents, c.elections, got.states, time.Since(begin).Round(time.Millisecond))
		if got.fault != "" || !got.whole {
			t.Errorf("%q, whole: %v\n%s", got.fault, got.whole, x.tell(first(Quorum, c.agents), got.trail))
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
	for _, c := range []struct {
		name      string
		mode      Mode
		way       way
		elections Election
	}{
		{"the textbook", Classic, right, 2},
		{"the last election is left out", Quorum, noElected, 2},
		{"the last election is not stored", Quorum, electedForgotten, 2},
		{"the last attempt is left out", Quorum, noAttempt, 4},
		{"an abort without pre-abort", Quorum, noPreAbort, 4},
		{"a decision without a majority", Quorum, noQuorum, 2},
		{"an acknowledgement before its record is stored", Quorum, earlyAck, 2},
		{"a vote before its record is stored", Quorum, earlyVote, 2},
		{"an answer before its record is stored", Quorum, earlyAnswer, 2},
		{"a vote that does not bind", Quorum, looseVote, 2},
		{"a restarted agent decides", Quorum, restartDecides, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := explorer{elections: c.elections, way: c.way}
			got := x.explore(first(c.mode, 3), most, splits)
			if got.fault == "" {
				t.Fatalf("not found wrong in %d states", got.states)
			}
			t.Logf("%s, after %d states:\n%s", got.fault, got.states, x.tell(first(c.mode, 3), got.trail))
		})
	}
}

// TestMajorityDecides: from every world, a connected majority decides when each of its agents has timed out once. All of its
// agents may have crashed before, and all messages are lost. Agents without a majority, which are bound, wait.
func TestMajorityDecides(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		agents          int8
		elections, long Election
	}{{3, 5, 7}, {4, 2, 4}, {5, 1, 2}} {
		if soak {
			c.elections = c.long
		}
		x, runs := explorer{elections: c.elections}, 0
		got := x.explore(first(Quorum, c.agents), most, func(w *world) string {
			for group := uint8(1); group < 1<<w.n; group++ {
				for from := range w.n {
					if runs++; !meets(*w, group, from, w.n, false) || !meets(*w, group, from, w.n, true) {
						return "agents wait, or decide, that should not"
					}
				}
			}
			return ""
		})
		t.Logf("%d agents, elections 1 to %d: %d states, %d meetings", c.agents, c.elections, got.states, runs)
		if got.fault != "" || !got.whole {
			t.Errorf("%q, whole: %v\n%s", got.fault, got.whole, x.tell(first(Quorum, c.agents), got.trail))
		}
	}
}

// TestMeetings: the check finds agents that decide without a majority, and a majority that waits for ever.
func TestMeetings(t *testing.T) {
	for mode, timers := range map[Mode]int8{Classic: 3, Quorum: 0} {
		x := explorer{elections: 2}
		got := x.explore(first(mode, 3), most, func(w *world) string {
			for group := uint8(1); group < 1<<w.n; group++ {
				if !meets(*w, group, 0, timers, false) {
					return "agents wait, or decide, that should not"
				}
			}
			return ""
		})
		if got.fault == "" {
			t.Errorf("mode %d with %d timers is not found wrong in %d states", mode, timers, got.states)
		}
	}
}

// meets reports whether the agents of a group, which hear of one another only, decide alike if they may decide, and wait else.
// As many agents as timers says time out, in turn from agent from.
func meets(w world, group uint8, from, timers int8, restart bool) bool {
	size, free := 0, false // free: an agent has decided, or may still abort alone
	for i := range w.n {
		if s := &w.agents[i]; group>>i&1 != 0 {
			if size++; restart {
				*s = New(s.Mode, s.Self, s.N, s.Record)
			}
			free = free || s.Phase.Final() || s.Phase == Initial || s.Role == Voting
		}
	}
	for turn := range timers {
		if i := (from + turn) % w.n; group>>i&1 != 0 {
			w.timeOut(i, group)
		}
	}
	var some [Aborted + 1]int
	for i := range w.n {
		if group>>i&1 != 0 {
			some[w.agents[i].Phase]++
		}
	}
	switch {
	case size > int(w.n)/2:
		return some[Committed] == size || some[Aborted] == size
	case !free:
		return some[Committed]+some[Aborted] == 0
	}
	return some[Committed] == 0 || some[Aborted] == 0
}

// timeOut gives an agent of a group a time-out, and the group all messages that follow.
func (w *world) timeOut(i int8, group uint8) {
	queue := []Message{{Kind: TimeOut, Peer: i}}
	froms := []int8{i}
	for len(queue) > 0 {
		m, from := queue[0], froms[0]
		queue, froms = queue[1:], froms[1:]
		for to := range w.n {
			if group>>to&1 == 0 || m.Peer != to && (m.Peer != All || to == from) {
				continue
			}
			e := m
			if e.Peer = from; e.Kind == CanCommit {
				e.Kind = VoteYes
			}
			next, messages, _ := w.agents[to].Step(e)
			w.agents[to] = next
			queue = append(queue, messages...)
			froms = append(froms, slices.Repeat([]int8{to}, len(messages))...)
		}
	}
}
