package idem

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/fence"
)

// rules is the protocol: the functions of record.go, or those of a naive version of them.
type rules struct {
	claim    func(claimant, *record) (*record, error)
	complete func(*record, string, outcome) (*record, error)
	reach    func(*record, string, point) (*record, error)
	abort    func(*record, string) (*record, error)
}

var (
	epoch = time.UnixMilli(1)
	sound = rules{
		claim:    func(c claimant, r *record) (*record, error) { return c.claim(r, Claimed) },
		complete: func(r *record, a string, o outcome) (*record, error) { return r.complete(a, o, epoch.Add(time.Hour)) },
		reach:    func(r *record, a string, p point) (*record, error) { return r.reach(a, p, epoch.Add(time.Hour)) },
		abort:    func(r *record, a string) (*record, error) { return r.abort(a) },
	}
)

// world is a state of the exploration: one record, and its workers. The locks prove nothing, because
// every worker may believe at any time that it holds.
type world struct {
	Version int
	Record  int // its number in explorer.records; 0: none
	Tokens  fence.Token
	Workers [3]worker
	Flying  [6]put // sent, and not arrived; their order does not matter
}

// worker goes through the calls begin, reach and complete, or begin and abort.
type worker struct {
	Call    string // the present one, or the last
	Over    string // how the last call ended; "": it goes on
	Token   fence.Token
	Seen    int
	SeenRec int
	Asking  bool // it has sent a write, and waits for the answer
	Losses  int  // how many more of its answers may be lost
}

// put is a write; its worker counts from 1, and 0 is no write.
type put struct{ Worker, Version, Record int }

func (w *world) clone() *world {
	next := *w
	return &next
}

func (w *world) sort() {
	slices.SortFunc(w.Flying[:], func(a, b put) int {
		return cmp.Or(b.Worker-a.Worker, b.Version-a.Version, b.Record-a.Record)
	})
}

func pack(r *record) string {
	if r == nil {
		return ""
	}
	text, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// number returns the number of a record.
func (x *explorer) number(r *record) int {
	if r == nil {
		return 0
	}
	text := pack(r)
	if x.numbers[text] == 0 {
		x.records = append(x.records, r)
		x.numbers[text] = len(x.records) - 1
	}
	return x.numbers[text]
}

func attemptOf(i int) string { return string(rune('A' + i)) }

// decide is what write does with a record: the next one, or how the call ends.
func (x *explorer) decide(w worker, i int) (next *record, over string) {
	is := x.records[w.SeenRec]
	var err error
	switch w.Call {
	case "begin":
		me := claimant{key: Key{"s", "k"}, token: w.Token, attempt: attemptOf(i), now: epoch, expiry: time.Hour}
		next, err = x.rules.claim(me, is)
	case "reach":
		next, err = x.rules.reach(is, attemptOf(i), point{Name: "p" + attemptOf(i)})
	case "complete":
		next, err = x.rules.complete(is, attemptOf(i), outcome{size: i + 1})
	case "abort":
		next, err = x.rules.abort(is, attemptOf(i))
	}
	switch {
	case errors.Is(err, ErrTakenOver):
		return nil, "taken over"
	case errors.Is(err, errRepeat):
		return nil, "repeat"
	case err != nil:
		return nil, err.Error()
	case next == is:
		return nil, "ok"
	}
	return next, ""
}

type explorer struct {
	rules   rules
	workers int
	records []*record
	numbers map[string]int
	seen    map[world]bool
	found   []string // mistakes
}

func (x *explorer) explore(w *world) {
	w.sort()
	if x.seen[*w] || len(x.found) > 5 {
		return
	}
	x.seen[*w] = true
	for i, flying := range w.Flying { // any write that flies may land now
		if flying.Worker > 0 {
			next := w.clone()
			next.Flying[i] = put{}
			x.land(w, next, flying, false)
		}
	}
	for i := range x.workers {
		x.step(w, i)
	}
}

// land has a write arrive, and tells its worker.
func (x *explorer) land(before, w *world, p put, told bool) {
	worker := &w.Workers[p.Worker-1]
	done := w.Version == p.Version
	if done {
		w.Version, w.Record = before.Version+1, p.Record
		if p.Record == 0 {
			w.Version = before.Version + 1000 // a version that no write stands on
		}
		x.check(before, w)
	}
	switch {
	case !told:
	case done:
		worker.Asking, worker.Over, worker.Seen, worker.SeenRec = false, "ok", w.Version, p.Record
	default: // a conflict: it reads again
		worker.Asking, worker.Seen, worker.SeenRec = false, w.Version, w.Record
	}
	x.explore(w)
}

func (x *explorer) step(w *world, i int) {
	is := w.Workers[i]
	switch {
	case is.Over != "":
		for _, call := range after(is) {
			next := w.clone()
			me := &next.Workers[i]
			me.Call, me.Over = call, ""
			if call == "begin" {
				next.Tokens++
				me.Token, me.Seen, me.SeenRec = next.Tokens, w.Version, w.Record
			}
			x.explore(next)
		}
	case is.Asking: // and its answer is lost: it reads again, while the write flies or has landed
		next := w.clone()
		me := &next.Workers[i]
		me.Asking, me.Seen, me.SeenRec = false, w.Version, w.Record
		x.explore(next)
	default:
		record, over := x.decide(is, i)
		next := w.clone()
		if over != "" {
			next.Workers[i].Over = over
			x.ended(next, i)
			x.explore(next)
			return
		}
		sent := put{i + 1, is.Seen, x.number(record)}
		x.land(w, w.clone(), sent, true)
		if is.Losses > 0 {
			me := &next.Workers[i]
			me.Asking, me.Losses = true, is.Losses-1
			next.Flying[len(next.Flying)-1] = sent // the last ones are free
			x.explore(next)
		}
	}
}

// after returns the calls that may follow.
func after(w worker) []string {
	switch {
	case w.Call == "":
		return []string{"begin"}
	case w.Over != "ok":
		return nil
	case w.Call == "begin":
		return []string{"reach", "complete", "abort"}
	case w.Call == "reach":
		return []string{"complete", "abort"}
	}
	return nil
}

// check holds a write against the record before.
func (x *explorer) check(before, after *world) {
	old, is := x.records[before.Record], x.records[after.Record]
	switch {
	case old == nil:
	case old.State == Done:
		x.fail(before, "a kept result was written over by %q", pack(is))
	case is == nil && (old.Attempts > 1 || len(old.Points) > 0):
		x.fail(before, "points, or the trace of a dead worker, were removed")
	case is != nil && is.Token < old.Token:
		x.fail(before, "the token went back from %d to %d", old.Token, is.Token)
	case is != nil && is.State == Claimed && len(is.Points) < len(old.Points):
		x.fail(before, "points were lost")
	case is != nil && is.State == Done && is.Attempt != old.Attempt:
		x.fail(before, "%s finished the work of %s", is.Attempt, old.Attempt)
	}
}

// ended holds the outcome that a worker is told against the record.
func (x *explorer) ended(w *world, i int) {
	me, is := w.Workers[i], x.records[w.Record]
	own := func(p put) bool { return p.Worker == i+1 && p.Version == w.Version }
	switch {
	case me.Call == "complete" && me.Over == "ok" && (is == nil || is.State != Done || is.Attempt != attemptOf(i)):
		x.fail(w, "%s is told that its result is kept", attemptOf(i))
	case me.Over == "repeat" && (is == nil || is.State != Done):
		x.fail(w, "%s is told of a result that is not there", attemptOf(i))
	case me.Over == "taken over" && (is != nil && is.Attempt == attemptOf(i) || slices.ContainsFunc(w.Flying[:], own)):
		x.fail(w, "%s is told that it was taken over, and owns the key or may write yet", attemptOf(i))
	case !slices.Contains([]string{"ok", "repeat", "taken over"}, me.Over):
		x.fail(w, "%s: %s", attemptOf(i), me.Over)
	}
}

func (x *explorer) fail(w *world, format string, args ...any) {
	x.found = append(x.found, fmt.Sprintf(format, args...)+fmt.Sprintf(" in %+v with %s", *w, pack(x.records[w.Record])))
}

func explore(r rules, workers, losses int) *explorer {
	x := &explorer{rules: r, workers: workers, records: []*record{nil}, numbers: make(map[string]int), seen: make(map[world]bool)}
	start := new(world)
	for i := range workers {
		start.Workers[i] = worker{Over: "ok", Losses: losses}
	}
	x.explore(start)
	return x
}

// TestRules goes through every order in which workers act, answers are lost, and writes arrive late.
// Death needs no step of its own: a worker may stop in any state.
func TestRules(t *testing.T) {
	for _, size := range []struct{ workers, losses int }{{2, 2}, {3, 0}} {
		x := explore(sound, size.workers, size.losses)
		t.Logf("%d workers, %d lost answers each: %d states", size.workers, size.losses, len(x.seen))
		if len(x.seen) < 100 {
			t.Error("that is not all")
		}
		for _, wrong := range x.found {
			t.Error(wrong)
		}
	}
}

// TestNaiveRules: the exploration finds the mistakes of others.
func TestNaiveRules(t *testing.T) {
	late := func(r *record) *record { // an unconditional write: it owns whatever is there
		if r == nil {
			return nil
		}
		is := *r
		return &is
	}
	for name, change := range map[string]func(*rules){
		"was written over|finished the work": func(r *rules) { // Powertools: _update_record has no owner
			r.complete = func(r *record, a string, o outcome) (*record, error) {
				is := late(r)
				if is == nil {
					is = &record{Format: recordFormat}
				}
				is.State, is.Attempt, is.Size = Done, a, o.size
				return is, nil
			}
		},
		"removed|written over": func(r *rules) { // Powertools: _delete_record has no owner
			r.abort = func(r *record, a string) (*record, error) { return nil, nil }
		},
		"the token went back": func(r *rules) { // each caller takes the key
			r.claim = func(c claimant, is *record) (*record, error) {
				if is != nil && is.State == Claimed && is.Attempt != c.attempt {
					is = late(is)
					is.Token = 0
				}
				return c.claim(is, Claimed)
			}
		},
		"is told that it was taken over": func(r *rules) { // a lost answer is taken for a refusal
			r.claim = func(c claimant, is *record) (*record, error) {
				if is != nil && is.Attempt == c.attempt {
					return nil, ErrTakenOver
				}
				return c.claim(is, Claimed)
			}
		},
	} {
		naive := sound
		change(&naive)
		x := explore(naive, 2, 1)
		if !slices.ContainsFunc(x.found, func(wrong string) bool {
			return slices.ContainsFunc(strings.Split(name, "|"), func(part string) bool { return strings.Contains(wrong, part) })
		}) {
			t.Errorf("%s: not found, but %q", name, x.found)
		}
	}
}

// TestRecordsAreStored: a record is read as it was written, even the longest.
func TestRecordsAreStored(t *testing.T) {
	text := strings.Repeat(`"\`, MaxPart/2) + "x"
	r := &record{Format: recordFormat, Scope: text, ID: text, State: Done, Fingerprint: make([]byte, 32), Token: fence.MaxToken, Attempt: strings.Repeat("A", 26),
		Attempts: 1 << 62, Began: 1 << 62, Expires: 1 << 62, Size: partSize, result: []byte(strings.Repeat("\n", partSize))}
	data, err := r.encode()
	if err != nil || len(data) > pawl.MaxValue {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	back, err := decode(pawl.Snapshot{Data: data, Number: 1})
	if err != nil || pack(back) != pack(r) || string(back.result) != string(r.result) {
		t.Errorf("read back: %v", err)
	}
	for data, want := range map[string]error{"": pawl.ErrMismatch, "x": pawl.ErrMismatch, `{"v":2}`: pawl.ErrUnsupported} {
		if _, err := decode(pawl.Snapshot{Data: []byte(data), Number: 1}); !errors.Is(err, want) {
			t.Errorf("%q: %v", data, err)
		}
	}
}
