package state

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pawl-go/pawl"
)

// graphs calls f with each machine of n states, whatever its transitions are.
func graphs(n int, f func(m *Machine[int])) {
	var pairs []Transition[int]
	var states []int
	for from := range n {
		states = append(states, from)
		for to := range n {
			if from != to {
				pairs = append(pairs, Transition[int]{from, to})
			}
		}
	}
	for set := range 1 << len(pairs) {
		var some []Transition[int]
		for i, p := range pairs {
			if set>>i&1 == 1 {
				some = append(some, p)
			}
		}
		if m, err := New(states, some...); err == nil {
			f(m)
		}
	}
}

// life is a row: its state, and all states in which it has been, as bits.
type life struct{ is, been int }

// lives are all that a row can become.
func lives(m *Machine[int]) map[life]bool {
	all := map[life]bool{{0, 1}: true}
	for next := []life{{0, 1}}; len(next) > 0; next = next[1:] {
		for _, t := range m.transitions {
			after := life{t.To, next[0].been | 1<<t.To}
			if t.From == next[0].is && !all[after] {
				all[after] = true
				next = append(next, after)
			}
		}
	}
	return all
}

// TestDecide compares the decision with all histories that a row can have, in all machines of
// up to 4 states. A repeat is told iff every history has it. Nothing moves twice unless the
// state is cyclic.
func TestDecide(t *testing.T) {
	machines := 0
	for n := 1; n <= 4; n++ {
		graphs(n, func(m *Machine[int]) {
			machines++
			all := lives(m)
			for to := range n {
				again := false
				for l := range all {
					before := true // in each history that leads to l.is
					for other := range all {
						before = before && (other.is != l.is || other.been>>to&1 == 1)
					}
					edge := false
					for _, tr := range m.transitions {
						edge = edge || tr == Transition[int]{l.is, to}
					}
					again = again || edge && l.been>>to&1 == 1
					want := Outcome(0)
					switch {
					case l.is == to:
						want = Repeated
					case edge:
						want = Moved
					case before:
						want = Passed
					}
					is, err := m.Decide(l.is, to)
					if is != want || (want == 0) != errors.Is(err, ErrIllegal) {
						t.Fatalf("%v: from %d to %d: %v, %v, not %v", m.transitions, l.is, to, is, err, want)
					}
				}
				if again != m.Cyclic(to) {
					t.Fatalf("%v: %d is cyclic: %t", m.transitions, to, m.Cyclic(to))
				}
			}
		})
	}
	if machines < 2000 {
		t.Errorf("only %d machines", machines)
	}
}

// row and caller are a model of Apply and ApplyAt: a caller takes a step for each statement.
type row struct{ is, version int }

type caller struct {
	to, at int  // at -1: Apply
	look   bool // its next statement
	calls  int  // that are left
	told   [3]int
}

// step runs the next statement of a caller.
func (c caller) step(m *Machine[int], r row) (caller, row, Outcome, error) {
	if !c.look {
		if outcome, err := m.Decide(r.is, c.to); err != nil || outcome != Moved || c.at >= 0 && c.at != r.version {
			c.look = true
			return c, r, 0, nil
		}
		c.calls--
		return c, row{c.to, r.version + 1}, Moved, nil
	}
	c.look = false
	var outcome Outcome
	var err error
	if c.at < 0 {
		outcome, err = m.Decide(r.is, c.to)
	} else {
		outcome, err = m.decideAt(r.is, c.to, int64(r.version), int64(c.at))
	}
	if err == nil && outcome == Moved {
		return c, r, 0, nil
	}
	c.calls--
	return c, r, outcome, err
}

// schedules explores each order of the steps of two callers. Done is called with each answer,
// and with the states in which the row has been, by version.
func schedules(m *Machine[int], r row, been []int, all [2]caller, done func(c caller, told Outcome, err error, been []int)) {
	for i, c := range all {
		if c.calls == 0 {
			continue
		}
		after, is, told, err := c.step(m, r)
		now := been
		if is != r {
			now = append(been[:len(been):len(been)], is.is)
		}
		if told != 0 || err != nil {
			done(c, told, err, now)
		}
		next := all
		next[i] = after
		schedules(m, is, now, next, done)
	}
}

// TestRaces takes two callers that call twice, in each order of their statements, over all
// machines of three states. No state is entered twice, and no repeat is told that did not happen.
func TestRaces(t *testing.T) {
	ends, repeats := 0, 0
	graphs(3, func(m *Machine[int]) {
		for choice := range 3 * 3 * 9 {
			a := caller{to: choice % 3, at: choice/9%3 - 1, calls: 2}
			b := caller{to: choice / 3 % 3, at: choice/27 - 1, calls: 2}
			if a.at < 0 && m.Cyclic(a.to) || b.at < 0 && m.Cyclic(b.to) {
				continue // which Apply refuses
			}
			schedules(m, row{}, []int{0}, [2]caller{a, b}, func(c caller, told Outcome, err error, been []int) {
				ends++
				was := 0
				for version, s := range been {
					if s == c.to && (c.at < 0 || version == c.at || version == c.at+1) {
						was++
					}
				}
				if told == Repeated || told == Passed {
					repeats++
				}
				if err == nil && was == 0 || c.at < 0 && was > 1 {
					t.Fatalf("%v: %+v was told %v, %v after %v", m.transitions, c, told, err, been)
				}
			})
		}
	})
	if ends < 100_000 || repeats < 10_000 {
		t.Errorf("only %d answers, %d of repeats", ends, repeats)
	}
}

func TestRanked(t *testing.T) {
	m, err := Ranked(0, 99, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, is := range []int{0, 99, 100} {
		for _, to := range []int{0, 99, 100} {
			want := Moved
			if is == to {
				want = Repeated
			} else if is > to {
				want = Passed
			}
			if got, err := m.Decide(is, to); got != want || err != nil {
				t.Errorf("from %d to %d: %v, %v", is, to, got, err)
			}
		}
	}
	if _, err := Ranked(0, 100, 99); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "99 does not rise above 100") {
		t.Error(err)
	}
	if _, err := Ranked("new", "paid"); err != nil {
		t.Error(err)
	}
}

// TestMistakes: each is found when the machine is declared, and named.
func TestMistakes(t *testing.T) {
	type T = Transition[string]
	for part, is := range map[string]struct {
		states      []string
		transitions []T
	}{
		"there are none":                    {nil, nil},
		"a and a are the same":              {[]string{"a", "a"}, nil},
		"Paid and paid are the same":        {[]string{"Paid", "paid"}, nil},
		`"a b" is no name`:                  {[]string{"a b"}, nil},
		`"" is no name`:                     {[]string{""}, nil},
		`"a\xff" is no name`:                {[]string{"a\xff"}, nil},
		strings.Repeat("x", 65):             {[]string{strings.Repeat("x", 65)}, nil},
		"c is not declared":                 {[]string{"a", "b"}, []T{{"a", "b"}, {"c", "b"}}},
		"from b to d: d is not":             {[]string{"a", "b"}, []T{{"a", "b"}, {"b", "d"}}},
		"from b to itself":                  {[]string{"a", "b"}, []T{{"a", "b"}, {"b", "b"}}},
		"from a to b is declared twice":     {[]string{"a", "b"}, []T{{"a", "b"}, {"a", "b"}}},
		"c cannot be reached from a":        {[]string{"a", "b", "c"}, []T{{"a", "b"}, {"c", "b"}}},
		"支付 cannot be reached from created": {[]string{"created", "支付"}, nil},
		"d cannot be reached from a":        {[]string{"a", "b", "d", "e"}, []T{{"a", "b"}, {"d", "e"}, {"e", "d"}}},
	} {
		_, err := New(is.states, is.transitions...)
		if !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
	if _, err := New([]string{"已创建", "paid_2.x-y"}, T{"已创建", "paid_2.x-y"}); err != nil {
		t.Error(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("Must does not panic")
		}
	}()
	Must(New[string](nil))
}

// level is a state whose String method must not be stored.
type level int16

func (l level) String() string { return fmt.Sprintf("level <%d>", int16(l)) }

func TestWords(t *testing.T) {
	m := Must(New([]level{-1, 7}, Transition[level]{-1, 7}))
	_, err := m.Decide(7, -1)
	if err != nil {
		t.Error(err)
	}
	m = Must(New([]level{-1, 7, 8}, Transition[level]{-1, 7}, Transition[level]{-1, 8}))
	_, err = m.Decide(7, 8)
	var illegal *IllegalError[level]
	if !errors.As(err, &illegal) || illegal.From != 7 || illegal.To != 8 || err.Error() != "illegal transition: from level <7> to level <8>" {
		t.Error(err)
	}
	if plain(level(-1)) != any(int64(-1)) || stored(level(7)) != "7" {
		t.Error("the String method is stored")
	}
	if _, err := m.Decide(9, 8); !errors.Is(err, ErrUndeclared) {
		t.Error(err)
	}
	for o, word := range map[Outcome]string{Moved: "moved", Repeated: "repeated", Passed: "passed", 0: "outcome 0", 4: "outcome 4"} {
		if o.String() != word {
			t.Error(o)
		}
	}
}
