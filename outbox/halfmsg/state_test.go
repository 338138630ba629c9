package halfmsg

import (
	"errors"
	"fmt"
	"testing"
)

// The steps of a producer.
const (
	atStart = iota
	prepared
	begun    // the transaction is open
	passed   // its row is in the barrier, and not committed
	unknown  // the transaction is committed, and nothing else is known to the producer
	finished // nothing more comes
)

// world is a coordinator, a barrier, a producer that may die anywhere, and two questions. All steps are atomic.
type world struct {
	half     State
	kept     bool // the half message is prepared
	barrier  row
	open     bool // the row of the barrier is of an open transaction
	producer int
	effects  int
	tries    int
	asks     [2]ask
	naive    bool
}

// ask is a question: not begun, or answered and not yet written.
type ask struct {
	answered bool
	outcome  Outcome
}

const mine = 7 // the owner of the first transaction; the second has one more

// steps returns the worlds that one step makes, or a fault.
func (w world) steps() (next []world, fault string) {
	add := func(change func(*world)) {
		n := w
		change(&n)
		next = append(next, n)
	}
	switch w.producer {
	case atStart:
		add(func(n *world) { n.producer, n.kept = prepared, true })
	case prepared:
		add(func(n *world) { n.producer = begun; n.tries++ })
	case begun:
		if !w.open {
			add(func(n *world) { fault = n.pass() })
		}
	case passed:
		add(func(n *world) { n.open = false; n.effects++; n.producer = unknown })
		add(func(n *world) { n.rollBack() })
	case unknown:
		add(func(n *world) { fault = n.decide(Submitted); n.producer = finished })
		if w.tries < 2 { // the outcome of the commit was lost: the caller tries again
			add(func(n *world) { n.producer = begun; n.tries++ })
		}
	}
	if w.producer != finished {
		add(func(n *world) { n.rollBack() }) // the process dies
	}
	for i, a := range w.asks {
		switch {
		case !w.kept || w.half != Prepared && !a.answered:
		case a.answered:
			add(func(n *world) {
				if want, decided := a.outcome.decides(); decided {
					fault += n.decide(want)
				}
				n.asks[i] = ask{}
			})
			add(func(n *world) { n.asks[i] = ask{} }) // the coordinator dies
		default:
			add(func(n *world) { n.asks[i] = ask{true, n.answer()} })
		}
	}
	return next, fault
}

// pass is Barrier.Pass: insert if absent, and look whose row it is.
func (w *world) pass() string {
	owner := int64(mine + w.tries)
	if w.barrier == (row{}) {
		w.barrier, w.open = row{Committed, owner}, true
	}
	switch err := w.barrier.pass(owner); {
	case err == nil:
		w.producer = passed
	case errors.Is(err, ErrRepeated) && w.effects == 1, errors.Is(err, ErrAborted) && w.effects == 0:
		w.producer = finished
	default:
		return fmt.Sprintf("the barrier says %v after %d effects", err, w.effects)
	}
	return ""
}

func (w *world) rollBack() {
	if w.open {
		w.barrier, w.open = row{}, false
	}
	w.producer = finished
}

// answer is Barrier.Answer. The naive one reads the row and inserts none.
func (w *world) answer() Outcome {
	switch {
	case w.naive && (w.open || w.barrier == (row{})):
		return RolledBack
	case w.open: // the insert waits
		return Open
	case w.barrier == (row{}):
		w.barrier = row{RolledBack, 1}
	}
	return w.barrier.outcome
}

// decide is the compare-and-set of the coordinator.
func (w *world) decide(want State) string {
	if err := w.half.to(want); err != nil {
		return fmt.Sprintf("to be %v: %v", want, err)
	}
	w.half = want
	return ""
}

// wrong names the fault of a world.
func (w world) wrong() string {
	switch {
	case w.effects > 1:
		return "the transaction took effect twice"
	case w.half == Submitted && w.effects == 0:
		return "sent, and not committed"
	case w.half == Aborted && w.effects > 0:
		return "committed, and not sent"
	}
	if w.kept && w.producer == finished { // the next question has to decide
		want, decided := w.answer().decides()
		if !decided || w.half.to(want) != nil {
			return "a question that decides nothing, or wrongly"
		}
	}
	return ""
}

// explore takes every step of every world, and returns how many worlds there are and the first fault.
func explore(first world) (n int, fault string) {
	seen := map[world]bool{first: true}
	for queue := []world{first}; len(queue) > 0; queue = queue[1:] {
		if wrong := queue[0].wrong(); wrong != "" {
			return len(seen), fmt.Sprintf("%s: %+v", wrong, queue[0])
		}
		next, fault := queue[0].steps()
		if fault != "" {
			return len(seen), fmt.Sprintf("%s: after %+v", fault, queue[0])
		}
		for _, w := range next {
			if !seen[w] {
				seen[w] = true
				queue = append(queue, w)
			}
		}
	}
	return len(seen), ""
}

// TestDecisions takes every order of the steps of a producer, which may die or try again, and of two questions. The messages
// are sent if and only if the transaction took effect. A coordinator that only reads the barrier is found wrong.
func TestDecisions(t *testing.T) {
	n, fault := explore(world{})
	if fault != "" || n < 50 {
		t.Errorf("%d worlds: %s", n, fault)
	}
	m, fault := explore(world{naive: true})
	if fault == "" {
		t.Error("the naive coordinator is not found wrong")
	}
	t.Logf("%d worlds; the naive coordinator after %d: %s", n, m, fault)
}

func TestNamesOfStates(t *testing.T) {
	for is, want := range map[fmt.Stringer]string{Prepared: "prepared", Submitted: "submitted", Aborted: "aborted", State(9): "state 9",
		Open: "open", Committed: "committed", RolledBack: "rolled back", Outcome(-1): "outcome -1"} {
		if is.String() != want {
			t.Errorf("%v is not %s", is, want)
		}
	}
}
