package queue_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

var (
	rwLock    = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}
	permits3  = engine.Spec{Kind: engine.KindSemaphore, Capacity: 3}
	barging   = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity, Barging: true}
	bargeFor3 = engine.Spec{Kind: engine.KindSemaphore, Capacity: 3, Barging: true}
)

func permits(n int64) engine.Spec { return engine.Spec{Kind: engine.KindSemaphore, Capacity: n} }

// The weights of a lock.
const (
	reads  = 1
	writes = engine.LockCapacity
)

// move is a command and its expected outcome, in the words of result.
type move struct {
	do   command
	want string
}

// command is a step; dies ends a session instead, which nobody notices yet.
type command struct {
	queue.Request
	dies string
}

// enter is a claim of a session and an owner of the same name.
func enter(id string, weight int64) command {
	return command{Request: queue.Request{Op: queue.Enter, Wait: true, Claim: queue.Claim{ID: id, Owner: id, Session: id, Weight: weight}}}
}

func try(id string, weight int64) command {
	c := enter(id, weight)
	c.Wait = false
	return c
}

func (c command) by(owner string) command       { c.Claim.Owner = owner; return c }
func (c command) in(session string) command     { c.Claim.Session = session; return c }
func (c command) wanting(s engine.Spec) command { c.Spec = s; return c }
func leave(id string) command                   { return ask(queue.Leave, id) }
func poll(id string) command                    { return ask(queue.Poll, id) }
func resize(n int64) command {
	return command{Request: queue.Request{Op: queue.Resize, Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: n}}}
}
func dies(session string) command            { return command{dies: session} }
func ask(op queue.Op, id string) (c command) { c.Op, c.Claim.ID = op, id; return c }
func result(op queue.Op, o queue.Outcome) string {
	var words []string
	switch {
	case o.Err != nil:
		words = append(words, class(o.Err))
	case o.Token != 0:
		words = append(words, fmt.Sprintf("holds %d", o.Token))
	case op == queue.Leave:
		words = append(words, "left")
	case op == queue.Resize:
		words = append(words, "resized")
	default:
		words = append(words, "waits")
	}
	for _, c := range o.Granted {
		words = append(words, fmt.Sprintf("%s holds %d", c.ID, c.Token))
	}
	for _, c := range o.Told {
		words = append(words, c.ID+" is told")
	}
	return strings.Join(words, ", ")
}

func class(err error) string {
	for _, c := range []error{engine.ErrBusy, engine.ErrGone, engine.ErrMismatch} {
		if errors.Is(err, c) {
			return c.Error()
		}
	}
	return "no class"
}

var scenarios = []struct {
	name  string
	spec  engine.Spec
	moves []move
}{
	{"a mutex is held by one, in order of arrival", rwLock, []move{
		{enter("a", writes), "holds 1"},
		{enter("b", writes), "waits"},
		{enter("c", writes), "waits"},
		{try("d", writes), "busy"},
		{poll("b"), "waits"},
		{leave("a"), "left, b holds 2"},
		{leave("b"), "left, c holds 3"},
		{leave("c"), "left"},
	}},
	{"a request whose reply was lost counts once", rwLock, []move{
		{enter("a", writes), "holds 1"},
		{enter("a", writes), "holds 1"},
		{enter("b", writes), "waits"},
		{enter("b", writes), "waits"},
		{leave("a"), "left, b holds 2"},
		{leave("a"), "gone"},
		{enter("b", writes), "holds 2"},
		{leave("b"), "left"},
	}},
	{"who asks again and no longer wants to wait is taken out", rwLock, []move{
		{enter("a", reads), "holds 1"},
		{enter("b", writes), "waits"},
		{enter("c", reads), "waits"},
		{try("b", writes), "busy, c holds 2"},
		{poll("b"), "gone"},
	}},
	{"readers share, and a writer is not starved by those that come later", rwLock, []move{
		{enter("r1", reads), "holds 1"},
		{enter("r2", reads), "holds 2"},
		{enter("w", writes), "waits"},
		{enter("r3", reads), "waits"},
		{enter("r4", reads), "waits"},
		{try("r5", reads), "busy"},
		{leave("r1"), "left"},
		{leave("r2"), "left, w holds 3"},
		{leave("w"), "left, r3 holds 4, r4 holds 5"},
	}},
	{"a writer that gives up lets the readers behind it pass", rwLock, []move{
		{enter("r1", reads), "holds 1"},
		{enter("w", writes), "waits"},
		{enter("r2", reads), "waits"},
		{leave("w"), "left, r2 holds 2"},
	}},
	{"an owner that holds enters again, past those that wait, with the same token", rwLock, []move{
		{enter("a", writes).by("o"), "holds 1"},
		{enter("b", writes), "waits"},
		{try("a2", writes).by("o"), "holds 1"},
		{leave("a"), "left"}, // a2 still holds
		{leave("a2"), "left, b holds 2"},
		{enter("a3", writes).by("o"), "waits"}, // an owner that lost it waits like any other
	}},
	{"a downgrade lets readers in at once", rwLock, []move{
		{enter("w", writes).by("o"), "holds 1"},
		{enter("r1", reads), "waits"},
		{enter("w2", writes), "waits"},
		{enter("r", reads).by("o"), "holds 1"},
		{leave("w"), "left, r1 holds 2"},
		{leave("r"), "left"},
		{leave("r1"), "left, w2 holds 3"},
	}},
	{"the one reader may become the writer, with a token of its own", rwLock, []move{
		{enter("r", reads).by("o"), "holds 1"},
		{enter("w", writes).by("o"), "holds 2"},
		{enter("w2", writes), "waits"},
		{enter("r2", reads).by("o"), "holds 2"},
		{leave("w"), "left"},
		{leave("r2"), "left"},
		{leave("r"), "left, w2 holds 3"},
	}},
	{"a reader that wants to write passes nobody who waits", rwLock, []move{
		{enter("r", reads).by("o"), "holds 1"},
		{enter("w2", writes), "waits"},
		{enter("w", writes).by("o"), "busy"},
		{leave("r"), "left, w2 holds 2"},
	}},
	{"two readers that both want to write are refused, for they would wait for each other", rwLock, []move{
		{enter("r1", reads).by("o1"), "holds 1"},
		{enter("r2", reads).by("o2"), "holds 2"},
		{enter("w1", writes).by("o1"), "busy"},
		{enter("w2", writes).by("o2"), "busy"},
		{leave("r2"), "left"},
		{enter("w1", writes).by("o1"), "holds 3"},
	}},
	{"permits are counted, and a large request is not passed by a small one", permits3, []move{
		{enter("a", 2), "holds 1"},
		{enter("b", 2), "waits"},
		{enter("c", 1), "waits"}, // would fit, came later
		{leave("a"), "left, b holds 2, c holds 3"},
	}},
	{"claims of one owner weigh as the heaviest of them", permits3, []move{
		{enter("a1", 1).by("o"), "holds 1"},
		{enter("a2", 1).by("o"), "holds 1"},
		{enter("b", 1), "holds 2"},
		{enter("a3", 2).by("o"), "holds 3"},
		{enter("a4", 3).by("o"), "busy"},
		{enter("c", 1), "waits"},
		{leave("a3"), "left, c holds 4"},
	}},
	{"an owner with several grants shares the largest token of them", rwLock, []move{
		{enter("r1", reads).by("o"), "holds 1"},
		{enter("w", writes).by("o"), "holds 2"},
		{enter("r2", reads).by("o"), "holds 2"},
		{leave("w"), "left"},
		{enter("r3", reads).by("o"), "holds 2"},
		{leave("r2"), "left"},
		{leave("r3"), "left"},
		{enter("r4", reads).by("o"), "holds 1"},
	}},
	{"the largest token is shared also where a heavier claim has a smaller token", permits3, []move{
		{enter("a1", 2).by("o"), "holds 1"},
		{enter("a2", 3).by("o"), "holds 2"},
		{enter("a3", 1).by("o"), "holds 2"},
		{leave("a2"), "left"},
		{enter("a4", 2).by("o"), "holds 2"},
	}},
	{"barging: the largest token is shared, whatever the order of arrival", bargeFor3, []move{
		{enter("b", 3), "holds 1"},
		{enter("o1", 1).by("o"), "waits"},
		{enter("o2", 2).by("o"), "waits"},
		{enter("o3", 1).by("o"), "waits"},
		{leave("b"), "left, o1 is told"},
		{poll("o3"), "holds 2, o1 is told, o1 is told"},
		{poll("o2"), "holds 3, o1 is told, o1 is told"},
		{poll("o1"), "holds 3"},
		{leave("o2"), "left"}, // o1 came before o3
		{enter("o4", 1).by("o"), "holds 3"},
	}},
	{"a dead holder and a dead waiter are skipped", rwLock, []move{
		{enter("a", writes), "holds 1"},
		{enter("b", writes), "waits"},
		{enter("c", writes), "waits"},
		{do: dies("a")},
		{do: dies("b")},
		{poll("c"), "holds 2, c holds 2"},
		{poll("a"), "gone"},
		{poll("b"), "gone"},
	}},
	{"one session that dies takes its own claims only", rwLock, []move{
		{enter("a", writes).by("o").in("s1"), "holds 1"},
		{enter("a2", writes).by("o").in("s2"), "holds 1"},
		{enter("b", writes), "waits"},
		{do: dies("s1")},
		{poll("b"), "waits"},
		{do: dies("s2")},
		{enter("c", writes), "waits, b holds 2"},
	}},
	{"a resource is of one kind, size and discipline until it is empty", permits3, []move{
		{enter("a", 3), "holds 1"},
		{enter("b", writes).wanting(rwLock), "mismatch"},
		{enter("b", 1).wanting(bargeFor3), "mismatch"},
		{leave("a"), "left"},
		{enter("b", writes).wanting(rwLock), "holds 2"},
	}},
	{"a semaphore that grows lets in those who wait, in order", permits3, []move{
		{enter("a", 3), "holds 1"},
		{enter("b", 3), "waits"},
		{enter("c", 1), "waits"},
		{resize(5), "resized"},
		{resize(6), "resized, b holds 2"},
		{enter("d", 1), "mismatch"},
		{enter("d", 1).wanting(permits(6)), "waits"},
		{resize(8), "resized, c holds 3, d holds 4"},
	}},
	{"a semaphore shrinks as holders leave, and evicts nobody", permits3, []move{
		{enter("a", 1), "holds 1"},
		{enter("b", 1), "holds 2"},
		{enter("c", 1), "holds 3"},
		{enter("d", 1), "waits"},
		{resize(1), "resized"},
		{poll("a"), "holds 1"},
		{leave("a"), "left"},
		{leave("b"), "left"},
		{leave("c"), "left, d holds 4"},
	}},
	{"a claim that weighs more than is left of a semaphore is let in alone", permits3, []move{
		{enter("a", 1), "holds 1"},
		{enter("b", 3), "waits"},
		{enter("c", 1), "waits"},
		{resize(2), "resized"},
		{leave("a"), "left, b holds 2"},
		{leave("b"), "left, c holds 3"},
	}},
	{"an owner that holds more than is left enters again", permits3, []move{
		{enter("a", 3).by("o"), "holds 1"},
		{resize(2), "resized"},
		{enter("a2", 2).by("o").wanting(permits(2)), "holds 1"},
		{leave("a"), "left"},
		{leave("a2"), "left"},
	}},
	{"only a semaphore that is in use is resized", rwLock, []move{
		{resize(2), "gone"},
		{enter("a", writes), "holds 1"},
		{resize(2), "mismatch"},
		{enter("b", reads), "waits"},
		{leave("a"), "left, b holds 2"},
	}},
	{"the dead are not counted when a semaphore is resized", permits3, []move{
		{enter("a", 3), "holds 1"},
		{enter("b", 1), "waits"},
		{do: dies("a")},
		{resize(1), "resized, b holds 2"},
		{do: dies("b")},
		{resize(2), "gone"},
	}},
	{"barging: the first that waits is told of permits that are added", bargeFor3, []move{
		{enter("a", 3), "holds 1"},
		{enter("b", 1), "waits"},
		{resize(4), "resized, b is told"},
		{poll("b"), "holds 2"},
	}},
	{"barging: who comes while it is free gets it, the first that waits is told each time", barging, []move{
		{enter("a", writes), "holds 1"},
		{enter("b", writes), "waits"},
		{enter("c", writes), "waits"},
		{leave("a"), "left, b is told"},
		{try("d", writes), "holds 2, b is told"}, // before b asked
		{poll("b"), "waits"},
		{leave("d"), "left, b is told"},
		{poll("b"), "holds 3"},
		{leave("b"), "left, c is told"},
		{poll("c"), "holds 4"},
	}},
	{"barging: told and gone, the next is told", barging, []move{
		{enter("a", writes), "holds 1"},
		{enter("b", writes), "waits"},
		{enter("c", writes), "waits"},
		{enter("d", writes), "waits"},
		{leave("a"), "left, b is told"},
		{leave("b"), "left, c is told"},
		{do: dies("c")},
		{leave("nobody"), "gone, d is told"},
		{poll("d"), "holds 2"},
	}},
	{"barging: when room for several is made they are told one after the other", bargeFor3, []move{
		{enter("a", 3), "holds 1"},
		{enter("b", 1), "waits"},
		{enter("c", 2), "waits"},
		{leave("a"), "left, b is told"},
		{poll("b"), "holds 2, c is told"},
		{poll("c"), "holds 3"},
	}},
}

func TestScenarios(t *testing.T) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			var state queue.State
			dead := make(map[string]bool)
			clock := queue.Clock{Now: 1, Ends: func(s string) int64 {
				if dead[s] {
					return 1
				}
				return 2
			}}
			for i, mv := range sc.moves {
				if mv.do.dies != "" {
					dead[mv.do.dies] = true
					continue
				}
				r := mv.do.Request
				if r.Op == queue.Enter && r.Spec == (engine.Spec{}) {
					r.Spec = sc.spec
				}
				var out queue.Outcome
				state, out = queue.Apply(state, r, clock)
				if got := result(r.Op, out); got != mv.want {
					t.Fatalf("move %d, %+v: %s; want %s", i+1, r, got, mv.want)
				}
			}
		})
	}
}

// TestTokensFollowTheClock: where the store makes tokens from its clock they
// outlive what it forgets, and never go back when the clock does.
func TestTokensFollowTheClock(t *testing.T) {
	var state queue.State
	for _, step := range []struct{ mint, want fence.Token }{{1000, 1000}, {1000, 1001}, {500, 1002}, {2000, 2000}} {
		clock := queue.Clock{Now: 1, Mint: step.mint, Ends: func(string) int64 { return 2 }}
		r := enter("a", writes).wanting(rwLock).Request
		var out queue.Outcome
		state, out = queue.Apply(state, r, clock)
		if out.Token != step.want {
			t.Fatalf("token %v, want %v", out.Token, step.want)
		}
		r.Op = queue.Leave
		state, _ = queue.Apply(state, r, clock)
	}
}

func TestMismatchNamesBoth(t *testing.T) {
	got := queue.Mismatch(bargeFor3, rwLock).Error()
	if want := "mismatch: in use as barging semaphore of 3, not as lock"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestGrantsInProportion: a step that grants many claims counts the granted claims once. A count for
// each grant would take a hundred times as much for ten times as many readers.
func TestGrantsInProportion(t *testing.T) {
	allocations := func(readers int) float64 {
		s := queue.State{Spec: rwLock, Claims: []queue.Claim{{ID: "writer", Owner: "writer", Weight: writes, Token: 1}}}
		for i := range readers {
			id := fmt.Sprint("reader ", i)
			s.Claims = append(s.Claims, queue.Claim{ID: id, Owner: id, Weight: reads})
		}
		clock := queue.Clock{Ends: func(string) int64 { return 1 }}
		return testing.AllocsPerRun(2, func() {
			if _, out := queue.Apply(s, leave("writer").Request, clock); len(out.Granted) != readers {
				t.Fatalf("%d readers hold, want %d", len(out.Granted), readers)
			}
		})
	}
	if few, many := allocations(200), allocations(2000); many > 12*few {
		t.Errorf("2,000 readers take %v allocations, 200 readers %v", many, few)
	}
}
