package protocol

import "testing"

// side is the part of a cut network in which an agent is.
func (w *world) side(agent int8) uint8 { return w.cut >> agent & 1 }

// sender is the agent of which an event comes to another agent. A decision comes of any agent on the same side that has
// taken it; without such an agent there is none.
func (w *world) sender(st step) (from int8, is bool) {
	switch e := st.event; e.Kind {
	case TimeOut:
		return st.agent, true
	case VoteYes, VoteNo:
		return 0, true // its CanCommit
	case Commit, Abort:
		for i := range w.n {
			if s := &w.agents[i]; s.Phase.Final() && s.decided() == e.Kind && w.side(i) == w.side(st.agent) {
				return i, true
			}
		}
		return 0, false
	default:
		return e.Peer, true
	}
}

// onlyCut leaves the steps in which nothing fails but the network, which is cut once, at any moment. All vote yes, and no
// agent crashes. Time-outs are long: they come after the cut, when no message is on its way on the side of the agent.
func (x *explorer) onlyCut(w *world) {
	var next world
	var busy [2]bool // by side
	kept := x.next[:0]
	for _, st := range x.next {
		from, is := w.sender(st)
		if !is || w.side(from) != w.side(st.agent) || st.crash != none || st.event.Kind == VoteNo {
			continue
		}
		kept = append(kept, st)
		if st.event.Kind != TimeOut && x.follow(w, &next, st) && next != *w {
			busy[w.side(st.agent)] = true
		}
	}
	x.next = kept[:0]
	for _, st := range kept {
		if st.event.Kind != TimeOut || w.cut != 0 && !busy[w.side(st.agent)] {
			x.next = append(x.next, st)
		}
	}
	if w.cut == 0 {
		for part := uint8(1); part < 1<<w.n-1; part += 2 { // agent 0 is in it
			x.next = append(x.next, step{cut: part})
		}
	}
}

// cutResult says how often cuts ended badly.
type cutResult struct {
	cuts               int // moments at which the network is cut, times the ways to part the agents
	splits             int // a cut that lets one agent commit and another abort
	majority, minority int // a cut that leaves an agent of the majority, or of the minority, undecided
}

// allCuts cuts the network of three agents at each moment, in each way, and follows all steps after that.
func allCuts(t *testing.T, mode Mode, way way) (r cutResult) {
	t.Helper()
	x := explorer{elections: 6, way: way, cuts: true, keeps: true}
	var cuts []world
	got := x.explore(first(mode, 3), most, func(w *world) string {
		if w.cut == 0 {
			for _, st := range x.all(w) {
				if st.cut != 0 {
					cuts = append(cuts, x.take(*w, st))
				}
			}
		}
		return ""
	})
	if !got.whole {
		t.Fatal("there are too many states")
	}
	for _, from := range cuts {
		splits, majority, minority := false, false, false
		x.explore(from, most, func(w *world) string {
			splits = splits || w.split() != ""
			if x.rests(w) {
				large, small := w.undecided()
				majority, minority = majority || large, minority || small
			}
			return ""
		})
		r.cuts++
		r.splits += int(bit(splits))
		r.majority += int(bit(majority))
		r.minority += int(bit(minority))
	}
	return r
}

// rests reports whether no step changes the world any more.
func (x *explorer) rests(w *world) bool {
	var next world
	for _, st := range x.all(w) {
		if x.follow(w, &next, st) && next != *w {
			return false
		}
	}
	return true
}

// undecided reports whether an agent on the larger side of the cut is undecided, or an agent on the smaller side.
func (w *world) undecided() (large, small bool) {
	var size [2]int8
	var waits [2]bool
	for i := range w.n {
		size[w.side(i)]++
		waits[w.side(i)] = waits[w.side(i)] || !w.agents[i].Phase.Final()
	}
	if size[0] > size[1] {
		return waits[0], waits[1]
	}
	return waits[1], waits[0]
}

// TestCuts: a cut of the network, which is the only fault, splits the textbook's protocol. Elections without a majority do
// not help. Two-phase commit lets the majority wait. The quorum lets only a minority wait.
func TestCuts(t *testing.T) {
	var rows [][]text
	for _, c := range cutRows {
		r := allCuts(t, c.mode, c.way)
		rows = append(rows, []text{c.name, number(r.cuts), number(r.splits), number(r.majority), number(r.minority)})
		t.Logf("%s: %+v", c.name[english], r)
		if (r.splits > 0) != c.splits || (r.majority > 0) != c.waits || c.mode == Quorum && !c.splits && r.minority == 0 {
			t.Errorf("%s: %+v", c.name[english], r)
		}
	}
	onPage(t, "cuts", table(cutColumns, rows))
}
