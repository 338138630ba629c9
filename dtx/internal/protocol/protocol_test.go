package protocol

import (
	"os"
	"testing"

	"github.com/pawl-go/pawl/dtx/internal/explore"
)

const (
	most  = 3          // branches that are explored
	bound = 20_000_000 // worlds

	absent = 9 // the step of a recoverer that takes none
)

// The states of a participant.
const (
	working = iota
	prepared
	committed
	aborted
)

// way is a naive way to do a step.
type way int8

const (
	right          way = iota
	noLog              // the coordinator decides in its memory
	noFence            // recovery thinks that a missing record never comes
	presumesCommit     // recovery commits without a record
	staleList          // recovery forgets a record by the list that was read before it
	silenceIsYes       // the coordinator takes a lost vote for yes
	silenceIsNo        // the coordinator takes silence of the log for an abort
	asksLate           // the coordinator takes a record for missing that recovery may have deleted
	forgetsLive        // recovery finishes branches, and deletes records, of a coordinator that is not fenced
	readsFirst         // recovery reads the log, and then lists
	ownIsOver          // recovery in the coordinator's process takes a transaction without an answer for decided
)

// world is a coordinator, participants, a log, two recoverers and the messages on their way. A message stays on its way, so
// it may come late, twice, or never. All steps are atomic.
type world struct {
	way                              way
	c                                State
	alive                            bool
	is                               [most]int8
	fenced                           bool
	record                           bool
	forgets                          bool // the record may be deleted
	asked                            bool // the coordinator got no answer to its decision
	decide, ask                      bool
	commits, backs                   [most]bool // requests of the second phase
	yes, no, done                    [most]bool // answers of participants
	written, refused, found, missing bool       // answers of the log
	r                                [2]recoverer
}

// recoverer is a process of recovery: it lists, fences, reads, acts, lists again, and forgets.
type recoverer struct {
	at     int8
	own    bool // in the coordinator's process: fences nothing
	listed [most]bool
	fenced bool // as the row was read
	record bool
}

// TestResolve: an operator decides only what neither the log nor a coordinator can decide.
func TestResolve(t *testing.T) {
	for _, row := range []Row{Unknown, Live, Fenced} {
		for _, record := range []bool{false, true} {
			for _, commit := range []bool{false, true} {
				is := Resolve(row, record, commit)
				switch verdict := Judge(row, record); {
				case is == Agreed && !record && row != Fenced, is == Agreed && record != commit:
					t.Errorf("row %d, record %v, commit %v: agreed", row, record, commit)
				case is == Heuristic && verdict != Refuse:
					t.Errorf("row %d, record %v, commit %v: the operator decides what recovery decides", row, record, commit)
				case is == FenceFirst && (commit || row != Live):
					t.Errorf("row %d, record %v, commit %v: fenced", row, record, commit)
				case is == Contradicted && verdict == Refuse:
					t.Errorf("row %d, record %v, commit %v: no operator can decide", row, record, commit)
				}
			}
		}
	}
}

func first(w way, n int8) world { return world{way: w, c: State{N: n}, alive: true} }

// beside has a recoverer in the coordinator's process and another elsewhere.
func beside(w way, n int8) world {
	from := first(w, n)
	from.r[1].own = true
	return from
}

// tell gives the coordinator an event.
func (w world) tell(e Event) world {
	if w.way == silenceIsYes && e.Kind == NoAnswer && w.c.Phase == Preparing {
		e.Kind = VotedYes
	}
	if w.way == silenceIsNo && e.Kind == LogSilent && w.c.Phase == Deciding {
		e.Kind = LogRefused
	}
	next, actions := w.c.Step(e)
	w.c = next
	for _, a := range actions {
		switch a.Do {
		case Decide:
			if w.way == noLog {
				return w.tell(Event{Kind: LogWritten})
			}
			w.decide = true
		case Ask:
			w.ask, w.asked = true, true
		case Commit:
			w.commits[a.Branch] = true
		case RollBack:
			w.backs[a.Branch] = true
		case Forget:
			w.forgets = true
		}
	}
	return w
}

// canonical takes steps, and one of all worlds that differ in the numbers of participants and recoverers only.
func (w world) canonical(add func(world)) {
	w.steps(func(n world) {
		for i := range n.c.N - 1 {
			for j := n.c.N - 1; j > i; j-- {
				if n.weight(j) < n.weight(j-1) {
					n.swap(j)
				}
			}
		}
		if n.r[1].weight() < n.r[0].weight() {
			n.r[0], n.r[1] = n.r[1], n.r[0]
		}
		add(n)
	})
}

// weight is the same for two participants in the same state.
func (w world) weight(i int8) (n int) {
	n = int(w.is[i])<<4 + int(w.c.Branches[i])
	for _, bit := range []bool{w.commits[i], w.backs[i], w.yes[i], w.no[i], w.done[i], w.r[0].listed[i], w.r[1].listed[i]} {
		n *= 2
		if bit {
			n++
		}
	}
	return n
}

func (w *world) swap(i int8) {
	w.is[i], w.is[i-1] = w.is[i-1], w.is[i]
	w.c.Branches[i], w.c.Branches[i-1] = w.c.Branches[i-1], w.c.Branches[i]
	for _, all := range []*[most]bool{&w.commits, &w.backs, &w.yes, &w.no, &w.done, &w.r[0].listed, &w.r[1].listed} {
		all[i], all[i-1] = all[i-1], all[i]
	}
}

func (r recoverer) weight() (n int) {
	for _, bit := range append(r.listed[:], r.own, r.fenced, r.record) {
		n *= 2
		if bit {
			n++
		}
	}
	return n*8 + int(r.at)
}

func (w world) steps(add func(world)) {
	if w.alive && w.c.Phase != Over {
		dead := w
		dead.alive = false
		add(dead)
		w.answers(add)
	}
	for i := range w.c.N {
		w.participant(i, add)
	}
	w.log(add)
	for i := range w.r {
		w.recover(i, add)
	}
}

// answers are the events of the coordinator. Silence may be heard at any time.
func (w world) answers(add func(world)) {
	for i := range w.c.N {
		if w.yes[i] {
			add(w.tell(Event{VotedYes, i}))
		}
		if w.no[i] {
			add(w.tell(Event{VotedNo, i}))
		}
		if w.done[i] {
			add(w.tell(Event{Finished, i}))
		}
		add(w.tell(Event{NoAnswer, i}))
	}
	for i, is := range []bool{w.written, w.refused, w.found, w.missing, true} {
		if is {
			add(w.tell(Event{Kind: LogWritten + Kind(i)}))
		}
	}
}

func (w world) participant(i int8, add func(world)) {
	switch w.is[i] {
	case working:
		no := w // refuses, or dies
		no.is[i], no.no[i] = aborted, true
		add(no)
		yes := w
		yes.is[i], yes.yes[i] = prepared, true
		add(yes)
	case prepared:
		if w.commits[i] {
			w.is[i], w.done[i] = committed, true
			add(w)
			w.is[i], w.done[i] = prepared, false
		}
		if w.backs[i] {
			w.is[i], w.done[i] = aborted, true
			add(w)
		}
	}
}

func (w world) log(add func(world)) {
	if w.decide {
		n := w
		switch {
		case w.fenced && !w.record:
			n.refused = true
		default: // also a second time, late
			n.record, n.written = !w.fenced || w.record, true
		}
		add(n)
	}
	if w.ask { // once: the coordinator knows whether it was the first to fence
		n := w
		n.ask, n.fenced = false, true
		n.found, n.missing = w.record, !w.record && (!w.fenced || w.way == asksLate)
		add(n)
	}
	if w.forgets && w.record {
		w.record, w.decide = false, false
		add(w)
	}
}

func (w world) recover(i int, add func(world)) {
	r := &w.r[i]
	switch {
	case r.own && !w.alive:
		return
	case r.own && r.at == 1:
		r.fenced = w.own() == Fenced
		r.at++
		add(w)
		return
	}
	switch r.at {
	case absent:
		return
	case 0, 4:
		if r.at == 0 || w.way != staleList {
			r.listed = w.listed()
		}
		if r.at == 0 && w.way == readsFirst {
			r.record = w.record
		}
		r.at++
	case 1:
		if w.way != noFence && w.way != forgetsLive && !w.fenced { // the coordinator is dead, or seems so
			n := w
			n.fenced, n.r[i].fenced, n.r[i].at = true, true, 2
			add(n)
		}
		r.fenced = w.fenced || w.way == noFence
		r.at++
	case 2:
		if w.way != readsFirst {
			r.record = w.record
		}
		r.at++
	case 3: // requests may be lost
		r.at = 4
		add(w)
		r.at = 3
		for j := range w.c.N {
			n := w
			if r.listed[j] && w.is[j] == prepared {
				n.is[j] = w.judged(r.fenced, r.record)
				add(n)
			}
		}
		return
	default:
		if r.record && (r.fenced && CanForget(Fenced) || w.way == forgetsLive) && r.listed == ([most]bool{}) && (w.way == staleList || w.listed() == [most]bool{}) {
			w.record, w.decide = false, false
		}
		*r = recoverer{own: r.own}
	}
	add(w)
}

// own is the row as recovery in the coordinator's process takes it.
func (w world) own() Row {
	row := Live
	if w.fenced {
		row = Fenced
	}
	return Own(w.c.Phase != Over, w.asked && w.way != ownIsOver, row)
}

// judged is the state of a prepared participant after recovery.
func (w world) judged(fenced, record bool) int8 {
	row := Live
	if fenced || w.way == forgetsLive && record {
		row = Fenced
	}
	switch Judge(row, record || w.way == presumesCommit) {
	case Complete:
		return committed
	case Undo:
		return aborted
	}
	return prepared
}

func (w world) listed() (all [most]bool) {
	for i, is := range w.is {
		all[i] = is == prepared
	}
	return all
}

func (w world) wrong() string {
	var some [aborted + 1]int8
	for _, is := range w.is[:w.c.N] {
		some[is]++
	}
	switch {
	case some[committed] > 0 && some[aborted] > 0:
		return "one participant has committed, and another has not"
	case w.c.Outcome == Committed && some[committed] < w.c.N:
		return "the caller hears that all have committed"
	case w.c.Outcome == Aborted && some[committed] > 0:
		return "the caller hears of an abort"
	case w.c.Outcome == Pending && some[aborted] > 0:
		return "the caller hears of a commit"
	}
	for i := range w.c.N {
		if w.is[i] == prepared { // all are back: one more pass of recovery
			w.is[i] = w.judged(true, w.record)
			if w.is[i] == prepared || w.is[i] == committed && some[aborted] > 0 || w.is[i] == aborted && some[committed] > 0 {
				return "recovery does not end the transaction, or wrongly"
			}
		}
	}
	return ""
}

// TestProtocol takes every order of the steps of a coordinator, of participants and of two recoverers. Each may die
// anywhere. Messages are lost, late or repeated. Every naive way is found wrong.
func TestProtocol(t *testing.T) {
	for _, n := range []int8{1, 2, 3} {
		from := first(right, n)
		if n == 3 && os.Getenv("PAWL_TEST_SOAK") == "" { // seconds in place of minutes
			from.r[1].at = absent
		}
		got := explore.All(from, bound, world.canonical, world.wrong)
		t.Logf("%d participants: %d worlds", n, got.States)
		if got.Fault != "" || got.States < 100 || got.States > bound {
			t.Errorf("%s after %d steps: %+v", got.Fault, len(got.Trail), got.Trail[max(0, len(got.Trail)-4):])
		}
	}
	for _, n := range []int8{1, 2} {
		got := explore.All(beside(right, n), bound, world.canonical, world.wrong)
		t.Logf("%d participants, and recovery in the coordinator's process: %d worlds", n, got.States)
		if got.Fault != "" || got.States < 100 || got.States > bound {
			t.Errorf("%s after %d steps: %+v", got.Fault, len(got.Trail), got.Trail[max(0, len(got.Trail)-4):])
		}
	}
	for w, name := range map[way]string{noLog: "no log", noFence: "no fence", presumesCommit: "presumed commit", staleList: "a stale list",
		silenceIsYes: "silence is yes", silenceIsNo: "silence is an abort", asksLate: "a late question", forgetsLive: "a live record is deleted", readsFirst: "the log is read before the list", ownIsOver: "a lost decision is over"} {
		from := first(w, 1)
		if w == ownIsOver {
			from = beside(w, 2)
		}
		got := explore.All(from, bound, world.canonical, world.wrong)
		if t.Logf("%s: %q after %d worlds and %d steps", name, got.Fault, got.States, len(got.Trail)); got.Fault == "" {
			t.Errorf("%s is not found wrong", name)
		}
	}
}
