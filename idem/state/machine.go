package state

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/pawl-go/pawl"
)

// State is a type of states: constants of a type of text or of signed integers. A String method
// names them in errors and pictures, and is never stored.
type State interface {
	~string | ~int | ~int8 | ~int16 | ~int32 | ~int64
}

// Transition is a step that is allowed.
type Transition[S State] struct{ From, To S }

// Outcome is what became of a request for a state.
type Outcome int

const (
	// Moved says that this call moved the row, or for [Machine.Decide] that a call would.
	Moved Outcome = 1 + iota
	// Repeated says that the row was in this state already. Nothing was written.
	Repeated
	// Passed says that the row has been beyond this state already. Nothing was written.
	Passed
)

// String returns the outcome in a word.
func (o Outcome) String() string {
	if o < Moved || o > Passed {
		return fmt.Sprintf("outcome %d", int(o))
	}
	return []string{"moved", "repeated", "passed"}[o-Moved]
}

var (
	// ErrIllegal says that the machine has no transition from the state of the row to the
	// requested state. errors.As finds an [IllegalError]. Nothing was written.
	ErrIllegal = errors.New("illegal transition")
	// ErrUndeclared says that a state is none of the machine's: in a request, or in a row that
	// another version of the program wrote. Nothing was written.
	ErrUndeclared = errors.New("undeclared state")
	// ErrCycle says that the state can be entered again, so that Apply cannot tell a repeat
	// from a new request: use ApplyAt. Nothing was asked.
	ErrCycle = errors.New("the state lies on a cycle: a repeat needs a version")
)

// IllegalError names the transition that is not allowed. An IllegalError matches [ErrIllegal].
type IllegalError[S State] struct{ From, To S }

// Error implements error.
func (e *IllegalError[S]) Error() string {
	return fmt.Sprintf("%v: from %v to %v", ErrIllegal, e.From, e.To)
}

// Is reports whether the target is [ErrIllegal].
func (e *IllegalError[S]) Is(target error) bool { return target == ErrIllegal } //nolint:errorlint // a sentinel

// Machine is a set of states and the transitions between them. A Machine does not change and is safe
// for concurrent use. Create it with [New] or [Ranked].
type Machine[S State] struct {
	states      []S
	transitions []Transition[S]
	from        map[S][]S        // by the state that they lead to
	passed      map[S]map[S]bool // passed[to][is]: a row in state is has been in state to before
	cyclic      map[S]bool
}

// New declares a machine. Rows begin in the first of the states. The error of New matches
// pawl.ErrInvalid and names the mistake:
//
//   - no state, or a state that is declared twice, or two states that differ in case only,
//     because a collation takes them for one;
//   - the name of a state that is not 1 to 64 bytes of letters, digits, '_', '-' and '.';
//   - a transition of a state that is not declared, or declared twice, or from a state to itself;
//   - a state that no row can reach.
func New[S State](states []S, transitions ...Transition[S]) (*Machine[S], error) {
	m := &Machine[S]{states: slices.Clone(states), transitions: slices.Clone(transitions),
		from: make(map[S][]S), passed: make(map[S]map[S]bool), cyclic: make(map[S]bool)}
	if err := m.declare(); err != nil {
		return nil, fmt.Errorf("%w: states: %w", pawl.ErrInvalid, err)
	}
	reached := m.reached(m.states[0], nil)
	for _, s := range m.states {
		if !reached[s] {
			return nil, fmt.Errorf("%w: states: %v cannot be reached from %v", pawl.ErrInvalid, s, m.states[0])
		}
		m.cyclic[s] = slices.ContainsFunc(m.from[s], func(before S) bool { return m.reached(s, nil)[before] })
		around := m.reached(m.states[0], &s)
		m.passed[s] = make(map[S]bool)
		for _, is := range m.states {
			m.passed[s][is] = is != s && !around[is]
		}
	}
	return m, nil
}

// Ranked declares states that only rise, in this order. Each may follow any state before it, and
// a late request for a lower state is [Passed]. The errors are those of [New]. Integers have to
// rise as well.
func Ranked[S State](ranks ...S) (*Machine[S], error) {
	var all []Transition[S]
	for i, to := range ranks {
		for _, from := range ranks[:i] {
			all = append(all, Transition[S]{from, to})
		}
		if reflect.TypeFor[S]().Kind() != reflect.String && i > 0 && to <= ranks[i-1] {
			return nil, fmt.Errorf("%w: ranks: %v does not rise above %v", pawl.ErrInvalid, to, ranks[i-1])
		}
	}
	m, err := New(ranks, all...)
	if err != nil {
		return nil, err
	}
	for i, is := range ranks {
		for _, to := range ranks[:i] {
			m.passed[to][is] = true
		}
	}
	return m, nil
}

// Must returns the machine and panics on an error. Must is for variables of a package, whose
// mistakes are those of the programmer.
func Must[S State](m *Machine[S], err error) *Machine[S] {
	if err != nil {
		panic(err)
	}
	return m
}

// declare checks the states and transitions one by one.
func (m *Machine[S]) declare() error {
	if len(m.states) == 0 {
		return errors.New("there are none")
	}
	for i, s := range m.states {
		if err := checkName(s); err != nil {
			return err
		}
		for _, other := range m.states[:i] {
			if strings.EqualFold(stored(s), stored(other)) {
				return fmt.Errorf("%v and %v are the same", other, s)
			}
		}
	}
	for i, t := range m.transitions {
		switch {
		case !slices.Contains(m.states, t.From):
			return fmt.Errorf("the transition from %v to %v: %v is not declared", t.From, t.To, t.From)
		case !slices.Contains(m.states, t.To):
			return fmt.Errorf("the transition from %v to %v: %v is not declared", t.From, t.To, t.To)
		case t.From == t.To:
			return fmt.Errorf("the transition from %v to itself changes nothing", t.From)
		case slices.Contains(m.transitions[:i], t):
			return fmt.Errorf("the transition from %v to %v is declared twice", t.From, t.To)
		}
		m.from[t.To] = append(m.from[t.To], t.From)
	}
	return nil
}

// checkName refuses text that a database may store or compare in another way.
func checkName[S State](s S) error {
	v := reflect.ValueOf(s)
	if v.Kind() != reflect.String {
		return nil
	}
	odd := func(r rune) bool {
		return r == unicode.ReplacementChar || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-.", r)
	}
	if name := v.String(); name == "" || len(name) > 64 || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("%.80q is no name of 1 to 64 bytes of letters, digits, '_', '-' and '.'", name)
	}
	return nil
}

// stored is the state as text, without its String method.
func stored[S State](s S) string { return fmt.Sprint(plain(s)) }

// reached returns the states that a row in state start can come to, start among them, on ways
// that do not lead through a state.
func (m *Machine[S]) reached(start S, around *S) map[S]bool {
	all := make(map[S]bool)
	if around != nil && *around == start {
		return all
	}
	all[start] = true
	for next := []S{start}; len(next) > 0; {
		is := next[0]
		next = next[1:]
		for _, t := range m.transitions {
			if t.From == is && !all[t.To] && (around == nil || t.To != *around) {
				all[t.To] = true
				next = append(next, t.To)
			}
		}
	}
	return all
}

// States returns the states in the order of their declaration. The first is that of new rows.
func (m *Machine[S]) States() []S { return slices.Clone(m.states) }

// From returns the states from which a transition leads to a state, in the order of their
// declaration.
func (m *Machine[S]) From(to S) []S { return slices.Clone(m.from[to]) }

// Cyclic reports whether a row can enter a state a second time.
func (m *Machine[S]) Cyclic(s S) bool { return m.cyclic[s] }

// Decide returns what becomes of a request for state to while the row is in state is. Decide is a
// pure function, and all that [Table] knows of machines. The errors match [ErrIllegal] or
// [ErrUndeclared].
func (m *Machine[S]) Decide(is, to S) (Outcome, error) {
	for _, s := range []S{is, to} {
		if !slices.Contains(m.states, s) {
			return 0, fmt.Errorf("%w: %v", ErrUndeclared, s)
		}
	}
	switch {
	case is == to:
		return Repeated, nil
	case slices.Contains(m.from[to], is):
		return Moved, nil
	case m.passed[to][is]:
		return Passed, nil
	}
	return 0, &IllegalError[S]{From: is, To: to}
}

// Mermaid returns a picture of the machine as the text of a Mermaid state diagram.
func (m *Machine[S]) Mermaid() string {
	var text strings.Builder
	name := func(s S) string { return fmt.Sprintf("s%d", slices.Index(m.states, s)) }
	text.WriteString("stateDiagram-v2\n")
	for _, s := range m.states {
		fmt.Fprintf(&text, "    %s: %v\n", name(s), s)
	}
	fmt.Fprintf(&text, "    [*] --> %s\n", name(m.states[0]))
	for _, t := range m.transitions {
		fmt.Fprintf(&text, "    %s --> %s\n", name(t.From), name(t.To))
	}
	for _, s := range m.states {
		if !slices.ContainsFunc(m.transitions, func(t Transition[S]) bool { return t.From == s }) {
			fmt.Fprintf(&text, "    %s --> [*]\n", name(s))
		}
	}
	return text.String()
}
