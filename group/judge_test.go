package group

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The test takes a small world through every series of events: three processes, a sweeper, and a watcher. A unit of time is the
// TTL, in which every living process joins again.

type phase int

const (
	out    phase = iota // has not begun
	locked              // has its lock and stands in no page yet
	in                  // a member
	lost                // has lost its lock, and is to join again
	over                // has left, or was replaced
	dying               // dead, and the store does not know yet
	gone                // dead, without a lock
)

// process joins. Two of the three have the same ID, and two have the same address.
type process struct {
	is     phase
	token  uint64 // of the lock and of the join
	joined uint64 // the token of the last join that succeeded
	tries  string // the tokens of later joins that were written, and whose answers were lost
	fooled bool   // by one of these
	absent bool   // another process has replaced the last join, and this process is about to join again
}

var identities = [3]Member{{ID: "a", Addr: "x"}, {ID: "a", Addr: "y"}, {ID: "b", Addr: "x"}}

// world is the state of all.
type world struct {
	next    uint64
	all     [3]process
	entries []entry
	copied  []entry              // a TTL ago
	read    []entry              // by the sweeper
	held    map[string]time.Time // read by a sweeper that looks at the locks first
	quiet   int
	now     int
	lost    bool // since the last look
	memory  memory
	seen    []Member // at the last look
}

// naive says which mistake a variant makes.
type naive string

const (
	sound       naive = ""
	impatient   naive = "sweeps right after an outage"
	forgetful   naive = "believes an empty store"
	credulous   naive = "believes an older copy of the store"
	byID        naive = "sweeps an ID instead of a lock"
	lastWriter  naive = "the last writer wins"
	locksFirst  naive = "reads the locks before the pages"
	addrsDouble naive = "lists an address twice"
	suspicious  naive = "takes its own join, whose answer was lost, for that of another"
)

var epoch = time.Unix(1e9, 0)

func (w world) clone() world {
	w.entries, w.read, w.seen = slices.Clone(w.entries), slices.Clone(w.read), slices.Clone(w.seen)
	w.copied, w.memory.known = slices.Clone(w.copied), slices.Clone(w.memory.known)
	return w
}

func lockOf(token uint64) string { return fmt.Sprint(token) }

func (p process) earlier() (tokens []uint64) {
	for _, word := range strings.Fields(p.tries) {
		token, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			panic(err)
		}
		tokens = append(tokens, token)
	}
	return tokens
}

func (p process) holds() bool  { return p.is == locked || p.is == in || p.is == dying }
func (p process) lives() bool  { return p.is == locked || p.is == in || p.is == lost }
func (p process) member() bool { return p.joined > 0 && p.lives() }

func (w *world) locks() map[string]time.Time {
	held := make(map[string]time.Time)
	for _, p := range w.all {
		if p.holds() {
			held[lockOf(p.token)] = epoch
		}
	}
	return held
}

func (w *world) begin(i int) {
	w.next++
	w.all[i].token, w.all[i].is = w.next, locked
}

// write puts a process into its page. The process may not hear of that.
func (w *world) write(i int, how naive, heard bool) {
	p := &w.all[i]
	most := p.joined
	var tries []uint64
	if how != suspicious {
		tries = p.earlier()
	}
	if most == 0 {
		most = math.MaxUint64
	}
	mine := entry{Member: identities[i], Lock: lockOf(p.token)}
	mine.Token = p.token
	if how == lastWriter {
		w.entries = slices.DeleteFunc(w.entries, func(e entry) bool { return e.ID == mine.ID })
	}
	placed, old, _, err := place(w.entries, mine, most, tries)
	switch {
	case !heard && err != nil:
		p.is = lost
		return
	case !heard:
		w.entries, p.is, p.tries = placed, lost, fmt.Sprint(p.tries, p.token, " ")
	case errors.Is(err, ErrReplaced):
		p.is = over
		i := slices.IndexFunc(w.entries, func(e entry) bool { return e.ID == mine.ID })
		p.fooled = slices.Contains(p.earlier(), w.entries[i].Token)
		return
	default:
		w.entries, p.is, p.joined, p.tries, p.absent = placed, in, p.token, "", false
	}
	for j := range w.all {
		w.all[j].absent = w.all[j].absent || j != i && old.Token > 0 && old.Token == w.all[j].joined
		if o := &w.all[j]; j != i && old.Lock != "" && lockOf(o.token) == old.Lock && o.is != over {
			if o.lives() {
				o.is = over
			} else {
				o.is = gone
			}
		}
	}
}

// events are all that can happen now.
func (w *world) events(how naive) (all map[string]func(*world)) {
	all = map[string]func(*world){
		"time":   func(w *world) { w.pass(how) },
		"outage": func(w *world) { w.outage() },
		"loss":   func(w *world) { w.outage(); w.entries = nil; w.lost = true },
		"older":  func(w *world) { w.outage(); w.entries = slices.Clone(w.copied); w.lost = true },
		"read":   func(w *world) { w.read, w.held = slices.Clone(w.entries), w.locks() },
		"look":   func(w *world) { w.look(how) },
	}
	if w.read != nil {
		all["sweep"] = func(w *world) { w.sweep(how) }
	}
	for i, p := range w.all {
		switch {
		case p.is == out, p.is == lost:
			all[fmt.Sprintf("begin %d", i)] = func(w *world) { w.begin(i) }
		case p.is == locked:
			all[fmt.Sprintf("write %d", i)] = func(w *world) { w.write(i, how, true) }
			if p.joined > 0 {
				all[fmt.Sprintf("write %d unheard", i)] = func(w *world) { w.write(i, how, false) }
			}
		case p.is == in:
			all[fmt.Sprintf("leave %d", i)] = func(w *world) {
				w.all[i].is = over
				w.entries = slices.DeleteFunc(w.entries, func(e entry) bool { return e.Lock == lockOf(p.token) })
			}
		}
		if p.lives() {
			all[fmt.Sprintf("die %d", i)] = func(w *world) {
				if w.all[i].is = gone; p.holds() {
					w.all[i].is = dying
				}
			}
		}
	}
	return all
}

// pass lets a TTL pass.
func (w *world) pass(how naive) {
	for i := range w.all {
		if w.all[i].is == lost {
			w.begin(i)
		}
		if w.all[i].is == locked {
			w.write(i, how, true)
		}
		if w.all[i].is == dying {
			w.all[i].is = gone
		}
	}
	w.now, w.quiet, w.copied = w.now+1, min(w.quiet+1, 2), slices.Clone(w.entries)
}

func (w *world) outage() {
	for i := range w.all {
		switch w.all[i].is {
		case locked, in:
			if w.all[i].is = lost; w.all[i].joined == 0 {
				w.all[i].is = out
			}
		case dying:
			w.all[i].is = gone
		}
	}
	w.quiet, w.read = 0, nil
}

func (w *world) sweep(how naive) {
	held, quiet := w.locks(), time.Duration(w.quiet)
	if how == impatient {
		quiet = 2
	}
	if how == locksFirst { // the pages are read now, and the locks were read before
		w.read, held = slices.Clone(w.entries), w.held
	}
	locks := dead(w.read, held, quiet, 1)
	ids := make(map[string]bool)
	for _, e := range w.read {
		ids[e.ID] = ids[e.ID] || slices.Contains(locks, e.Lock)
	}
	w.entries = slices.DeleteFunc(w.entries, func(e entry) bool {
		return slices.Contains(locks, e.Lock) || how == byID && ids[e.ID]
	})
	w.read = nil
}

func (w *world) look(how naive) {
	var listed []Member
	for _, e := range w.entries {
		listed = append(listed, e.Member)
	}
	if how == addrsDouble {
		w.seen, w.lost = slices.Clone(listed), false
		return
	}
	if how == credulous {
		w.memory.known = slices.DeleteFunc(w.memory.known, func(m Member) bool {
			return slices.ContainsFunc(listed, func(o Member) bool { return o.ID == m.ID })
		})
	}
	w.seen, _ = w.memory.learn(newest(listed), w.lost && how != forgetful, epoch.Add(time.Duration(w.now)), 1)
	w.lost = false
}

// check compares a look with the look before.
func (w *world) check(before []Member) error {
	ids, addrs := make(map[string]bool), make(map[string]bool)
	for _, m := range w.seen {
		if ids[m.ID] || addrs[m.Addr] {
			return fmt.Errorf("an ID or address is seen twice: %v", w.seen)
		}
		ids[m.ID], addrs[m.Addr] = true, true
	}
	for i, p := range w.all {
		is := identities[i]
		known := func(m Member) bool { return m.ID == is.ID && m.Addr == is.Addr }
		hides := func(m Member) bool { return known(m) || (m.ID == is.ID || m.Addr == is.Addr) && m.Token >= p.joined }
		if p.member() && !p.absent && slices.ContainsFunc(before, known) && !slices.ContainsFunc(w.seen, hides) {
			return fmt.Errorf("process %d lives and is seen no more: %v after %v", i, w.seen, before)
		}
	}
	return nil
}

// settle lets everything come to rest: then exactly the members are seen.
func (w world) settle(how naive) error {
	w = w.clone()
	w.look(how) // which learns of a loss
	for range 2 {
		w.pass(how)
	}
	w.read, w.held = slices.Clone(w.entries), w.locks()
	w.sweep(how)
	w.look(how)
	var want []Member
	for i, p := range w.all {
		if p.fooled {
			return fmt.Errorf("process %d was replaced by itself", i)
		}
		if p.member() {
			m := identities[i]
			m.Token = p.joined
			want = append(want, m)
		}
	}
	if want = newest(want); !slices.EqualFunc(w.seen, want, Member.equal) {
		return fmt.Errorf("at rest %v are seen and %v are members", w.seen, want)
	}
	return nil
}

// explore returns the first series of events, of at most so many, after which a check fails.
func explore(how naive, most int) (worlds int, series []string, err error) {
	visited := make(map[string]bool)
	type step struct {
		world
		path []string
	}
	front := []step{{world: world{quiet: 1}}}
	for range most {
		var then []step
		for _, s := range front {
			for name, do := range s.events(how) {
				w := s.clone()
				do(&w)
				path := append(slices.Clone(s.path), name)
				err := w.settle(how)
				if name == "look" {
					err = errors.Join(err, w.check(s.seen))
				}
				if err != nil {
					return len(visited), path, err
				}
				if key := fmt.Sprintf("%v", w); !visited[key] {
					visited[key] = true
					then = append(then, step{w, path})
				}
			}
		}
		front = then
	}
	return len(visited), nil, nil
}

// TestEverySeries: after every series of events a watcher loses no living member, sees no ID or address twice, and at rest
// sees exactly the members. Variants with a mistake are found.
func TestEverySeries(t *testing.T) {
	t.Parallel()
	most := 7
	switch {
	case os.Getenv("PAWL_TEST_SOAK") != "":
		most = 9
	case raceDetector: // which finds nothing here, and slows the test down
		most = 6
	}
	worlds, series, err := explore(sound, most)
	if err != nil {
		t.Fatalf("%s: %v", strings.Join(series, ", "), err)
	}
	t.Logf("%d worlds", worlds)
	for _, how := range []naive{impatient, forgetful, credulous, byID, lastWriter, locksFirst, addrsDouble, suspicious} {
		_, series, err := explore(how, 9)
		if err == nil {
			t.Errorf("%s: that is not found", how)
		}
		t.Logf("%s: %s: %v", how, strings.Join(series, ", "), err)
	}
}

// TestRest: a round of a second had a pause of five seconds, in which a dead member stayed in the list.
func TestRest(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond:      250 * time.Millisecond,
		80 * time.Millisecond: 400 * time.Millisecond,
		time.Second:           500 * time.Millisecond,
		100 * time.Second:     500 * time.Millisecond,
	} {
		if is := rest(took); is != want {
			t.Errorf("after a round of %v the pause is %v, want %v", took, is, want)
		}
	}
}
