package lines_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/lines"
)

// node is a claim as the store of this test keeps it.
type node struct {
	id, owner  string
	spec       engine.Spec
	weight     int64
	inTurn     bool
	token, rev int64 // token 0: the rev
}

type (
	claim   = lines.Claim[node]
	blocker = lines.Blocker[node]
)

// client is a claim as its client knows it.
type client struct {
	engine.Claim
	wait    bool
	isNew   bool
	token   int64 // 0: it waits, for:
	blocker blocker
}

// world is a store with clients that look at a resource once, and again only when the claim that
// they watch has changed. Package queue has the same resource.
type world struct {
	enterFirst bool // a claim that may wait is appended before it looks, as on ZooKeeper; else after, as on etcd
	naive      bool // a claim that waits watches the last claim that holds
	nodes      []node
	rev        int64
	clients    []*client
	told       []*client // clients that have to look
	model      queue.State
	tokens     map[int64]fence.Token // of the model, by that of the store
	granted    map[string]bool       // clients that were granted the resource in this step
	looked     map[string]bool       // clients that looked in this step
}

func (w *world) read() lines.Line[node] {
	var claims []*claim
	for _, n := range w.nodes {
		claims = append(claims, &claim{ID: n.id, Owner: n.owner, Spec: n.spec, Weight: n.weight, InTurn: n.inTurn, Token: cmp.Or(n.token, n.rev), Node: n})
	}
	slices.SortFunc(claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.Token, b.Token), cmp.Compare(a.Node.rev, b.Node.rev))
	})
	return lines.New(claims)
}

func (w *world) add(c *client, inTurn bool, token int64) {
	w.rev++
	w.nodes = append(w.nodes, node{c.ID, c.Owner, c.Spec, c.Weight, inTurn, token, w.rev})
}

// remove deletes a node, and tells the clients that watch it or wait for any.
func (w *world) remove(n node) {
	w.nodes = slices.DeleteFunc(w.nodes, func(o node) bool { return o.id == n.id })
	w.tell(func(c *client) bool {
		if c.blocker.Claim == nil {
			return !c.Barging || !n.inTurn
		}
		return c.blocker.Claim.Node.rev == n.rev
	})
}

// holds tells the clients that wait until this one holds, by a change of its node. Where claims
// enter first a change is also how a claim hands over.
func (w *world) holds(n node) {
	if n.inTurn && lines.Tells(n.spec, n.weight) {
		w.handOver(n)
	}
	w.tell(func(c *client) bool {
		return c.blocker.Tells && c.blocker.Claim.Node.rev == n.rev
	})
}

// handOver grants the clients that take a change of this node for that.
func (w *world) handOver(n node) {
	for _, c := range w.clients {
		if b := c.blocker; w.enterFirst && !c.isNew && c.token == 0 && b.Direct && b.Claim.Node.rev == n.rev {
			i := slices.IndexFunc(w.nodes, func(own node) bool { return own.id == c.ID })
			c.token, w.granted[c.ID], w.looked[c.ID] = w.nodes[i].rev, true, true
		}
	}
}

func (w *world) tell(watches func(*client) bool) {
	for _, c := range w.clients {
		if !c.isNew && c.token == 0 && watches(c) && !slices.Contains(w.told, c) {
			w.told = append(w.told, c)
		}
	}
}

// look takes steps of a client until it holds, waits or is refused.
func (w *world) look(c *client) error {
	w.looked[c.ID] = true
	for {
		l := w.read()
		own := l.Find(c.ID)
		step, with, err := l.Next(&c.Claim, c.Owner, own, c.isNew, c.wait)
		switch {
		case err != nil:
			w.leave(c)
			return err
		case step == lines.Append:
			w.add(c, true, 0)
			c.isNew = c.isNew && w.enterFirst
			continue
		case step == lines.Share && own != nil && own.Shares != nil:
			i := slices.IndexFunc(w.nodes, func(n node) bool { return n.id == c.ID })
			w.nodes[i].token, w.nodes[i].inTurn = with.Grant(), false
			continue
		case step == lines.Share:
			w.replace(c, own, false, with.Grant())
			continue
		case step == lines.Take:
			w.replace(c, own, !c.Barging && (w.enterFirst || with == nil), 0)
			continue
		}
		if c.isNew = false; !own.Holds {
			if c.blocker = l.Blocker(own); w.naive {
				for _, o := range l.Claims {
					if o.Holds {
						c.blocker = blocker{Claim: o}
					}
				}
			}
			return nil
		}
		c.token, w.granted[c.ID] = own.Grant(), true
		w.holds(own.Node)
		return nil
	}
}

func (w *world) replace(c *client, own *claim, inTurn bool, token int64) {
	if own != nil {
		w.remove(own.Node)
	}
	w.add(c, inTurn, token)
}

func (w *world) enter(c *client) error {
	w.clients = append(w.clients, c)
	c.isNew = true
	if w.enterFirst && c.wait && !c.Barging {
		w.add(c, true, 0)
	}
	return w.look(c)
}

// leave removes a claim. Where claims enter first, a claim that held all by itself hands over: the
// clients that are handed the resource do not look.
func (w *world) leave(c *client) error {
	l := w.read()
	own := l.Find(c.ID)
	w.clients = slices.DeleteFunc(w.clients, func(o *client) bool { return o == c })
	w.told = slices.DeleteFunc(w.told, func(o *client) bool { return o == c })
	if own == nil {
		return engine.ErrGone
	}
	beside := slices.ContainsFunc(l.Claims, func(o *claim) bool { return o != own && o.Holds })
	if own.Holds && l.First(own) && !beside && own.Weight == own.Spec.Capacity {
		w.handOver(own.Node)
	}
	w.remove(own.Node)
	return nil
}

// settle lets the clients look that were told, until nobody is.
func (w *world) settle() error {
	for len(w.told) > 0 {
		c := w.told[0]
		if w.told = w.told[1:]; c.token != 0 {
			continue
		}
		if c.Barging { // any look may let it in
			w.apply(queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}}) //nolint:errcheck // agree compares
		}
		if err := w.look(c); err != nil {
			return err
		}
	}
	return nil
}

// apply takes a step of the model, and the steps of the barging waiters that it tells.
func (w *world) apply(r queue.Request) (err error) {
	clock := queue.Clock{Now: 1, Mint: 1, Ends: func(string) int64 { return 2 }}
	var out queue.Outcome
	w.model, out = queue.Apply(w.model, r, clock)
	for err = out.Err; len(out.Told) > 0; {
		w.model, out = queue.Apply(w.model, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: out.Told[0].ID}}, clock)
	}
	return err
}

// op is a step: a claim that enters, or the number of a claim that leaves.
type op struct {
	enter  bool
	number int
	owner  string // empty: the ID
	weight int64
	wait   bool
	spec   engine.Spec
}

func (w *world) take(id string, o op) error {
	w.granted, w.looked = make(map[string]bool), make(map[string]bool)
	var err, want error
	held := false
	if o.enter {
		c := &client{Claim: engine.Claim{Spec: o.spec, ID: id, Owner: cmp.Or(o.owner, id), Weight: o.weight}, wait: o.wait}
		err = w.enter(c)
		want = w.apply(queue.Request{Op: queue.Enter, Spec: o.spec, Wait: o.wait, Claim: queue.Claim{ID: id, Owner: c.Owner, Weight: o.weight}})
	} else {
		c := w.clients[o.number]
		held = c.token != 0
		err = w.leave(c)
		want = w.apply(queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: c.ID}})
	}
	for _, class := range []error{engine.ErrBusy, engine.ErrMismatch, engine.ErrGone} {
		if errors.Is(err, class) && errors.Is(want, class) {
			err, want = nil, nil
		}
	}
	if err != nil || want != nil {
		return fmt.Errorf("%v, the model: %v", err, want)
	}
	if err := w.settle(); err != nil {
		return err
	}
	odd := slices.ContainsFunc(w.nodes, func(n node) bool { return n.owner != n.id || n.weight > 2 && n.weight < n.spec.Capacity })
	if held && !odd && len(w.looked) > len(w.granted)+1 {
		return fmt.Errorf("%d clients were woken and %d of them granted", len(w.looked), len(w.granted))
	}
	return w.agree()
}

// agree compares what the clients know with the model: each waiter that holds by now has
// been told.
func (w *world) agree() error {
	if len(w.clients) != len(w.model.Claims) {
		return fmt.Errorf("there are %d claims, in the model %d", len(w.clients), len(w.model.Claims))
	}
	for _, c := range w.clients {
		i := slices.IndexFunc(w.model.Claims, func(m queue.Claim) bool { return m.ID == c.ID })
		if i < 0 {
			return fmt.Errorf("%s is not in the model", c.ID)
		}
		token := w.model.Claims[i].Token
		if (c.token != 0) != (token != 0) {
			return fmt.Errorf("%s has token %d, in the model %d", c.ID, c.token, token)
		}
		if was, ok := w.tokens[c.token]; ok && was != token {
			return fmt.Errorf("token %d of %s is %d and %d in the model", c.token, c.ID, was, token)
		}
		w.tokens[c.token] = token
	}
	for is, want := range w.tokens {
		for other, wantOther := range w.tokens {
			if is < other && want >= wantOther {
				return fmt.Errorf("tokens %d and %d are %d and %d in the model", is, other, want, wantOther)
			}
		}
	}
	return nil
}

func newWorld(enterFirst bool) *world {
	return &world{enterFirst: enterFirst, tokens: make(map[int64]fence.Token)}
}

func specs(permits int64) []engine.Spec {
	return []engine.Spec{
		{Kind: engine.KindLock, Capacity: engine.LockCapacity}, {Kind: engine.KindLock, Capacity: engine.LockCapacity, Barging: true},
		{Kind: engine.KindSemaphore, Capacity: permits}, {Kind: engine.KindSemaphore, Capacity: permits, Barging: true},
	}
}

// run takes steps in a new world, and returns how many claims there are then.
func run(enterFirst, naive bool, ops []op) (int, error) {
	w := newWorld(enterFirst)
	w.naive = naive
	for i, o := range ops {
		if err := w.take(fmt.Sprint("c", i), o); err != nil {
			return 0, fmt.Errorf("step %d of %+v: %w", i, ops, err)
		}
	}
	return len(w.clients), nil
}

// explore takes all series of steps of a length, and returns how many there are.
func explore(enterFirst, naive bool, spec engine.Spec, ops []op, most int) (n int, err error) {
	claims, err := run(enterFirst, naive, ops)
	if err != nil || len(ops) == most {
		return 1, err
	}
	var next []op
	for _, weight := range []int64{spec.Capacity/3 + 1, spec.Capacity} { // of which two fit, or one
		for _, owner := range []string{"", "o"} {
			next = append(next, op{enter: true, owner: owner, weight: weight, wait: true, spec: spec}, op{enter: true, owner: owner, weight: weight, spec: spec})
		}
	}
	for i := range claims {
		next = append(next, op{number: i})
	}
	for _, o := range next {
		some, err := explore(enterFirst, naive, spec, append(slices.Clip(ops), o), most)
		if n += some; err != nil {
			return n, err
		}
	}
	return n, nil
}

// TestAllSeries: clients that decide by a line, and look only when a watched claim has changed,
// have the grants that package queue gives. This holds in each series of a few steps.
func TestAllSeries(t *testing.T) {
	most := 5
	if testing.Short() {
		most = 4
	}
	for _, enterFirst := range []bool{false, true} {
		for _, spec := range specs(2) {
			t.Run(fmt.Sprintf("%s, enters first: %v", queue.Describe(spec), enterFirst), func(t *testing.T) {
				t.Parallel()
				n, err := explore(enterFirst, false, spec, nil, most)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d series", n)
			})
		}
	}
}

// TestAllSeriesFind: the same series find waiters that nobody wakes, or that wake for nothing.
func TestAllSeriesFind(t *testing.T) {
	for _, spec := range specs(2) {
		if n, err := explore(false, true, spec, nil, 5); err == nil {
			t.Errorf("%s: nothing is wrong in %d series", queue.Describe(spec), n)
		}
	}
}

// TestLongSeries: the same in long random series, with more weights and owners, and with claims
// that use the name as something else.
func TestLongSeries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := specs(5)
		w, spec := newWorld(rapid.Bool().Draw(t, "enters first")), rapid.SampledFrom(all).Draw(t, "spec")
		odd := rapid.Bool().Draw(t, "odd weights")
		owners := rapid.SampledFrom([][]string{{""}, {"", "", "", "o", "p"}}).Draw(t, "owners")
		for i := range 60 {
			var o op
			if n := len(w.clients); n > 0 && rapid.IntRange(0, 9).Draw(t, "leaves") < 4 {
				o.number = rapid.IntRange(0, n-1).Draw(t, "number")
			} else {
				o = op{enter: true, spec: spec, wait: rapid.Bool().Draw(t, "waits")}
				if rapid.IntRange(0, 19).Draw(t, "something else") == 0 {
					o.spec = rapid.SampledFrom(all).Draw(t, "spec")
				}
				if o.weight = rapid.SampledFrom([]int64{1, 1, 2, o.spec.Capacity}).Draw(t, "weight"); odd && o.weight == 1 {
					o.weight = o.spec.Capacity/3 + 1
				}
				o.owner = rapid.SampledFrom(owners).Draw(t, "owner")
			}
			if err := w.take(fmt.Sprint("c", i), o); err != nil {
				t.Fatalf("%+v: %v", o, err)
			}
		}
	})
}

// TestAnotherUse: a claim that uses the name as something else holds nothing before it is the
// first. All claims behind it wait until it goes.
func TestAnotherUse(t *testing.T) {
	lock, permits := specs(3)[0], specs(3)[2]
	order := func(claims ...claim) lines.Line[node] {
		var all []*claim
		for i, c := range claims {
			c.Owner, c.Weight, c.InTurn, c.Token = c.ID, 1, true, int64(i+1)
			all = append(all, &c)
		}
		return lines.New(all)
	}
	l := order(claim{ID: "a", Spec: lock}, claim{ID: "b", Spec: permits}, claim{ID: "c", Spec: lock})
	for id, want := range map[string]bool{"a": true, "b": false, "c": false} {
		if l.Find(id).Holds != want {
			t.Errorf("%s holds: %v", id, !want)
		}
	}
	if b := l.Blocker(l.Find("c")); b.Claim != l.Find("b") || b.Direct || b.Tells {
		t.Errorf("c waits for %+v", b)
	}
	b := &engine.Claim{Spec: permits, ID: "b", Owner: "b", Weight: 1}
	if _, _, err := l.Next(b, "b", l.Find("b"), true, true); !errors.Is(err, engine.ErrMismatch) {
		t.Errorf("b: %v", err)
	}
	l = order(claim{ID: "b", Spec: permits}, claim{ID: "c", Spec: lock})
	c := &engine.Claim{Spec: lock, ID: "c", Owner: "c", Weight: 1}
	if step, _, err := l.Next(c, "c", l.Find("c"), false, true); step != lines.Stay || err != nil || l.Find("c").Holds {
		t.Errorf("c behind b: %v, %v, holds %v", step, err, l.Find("c").Holds)
	}
	barges, held := engine.Spec{Kind: engine.KindSemaphore, Capacity: 3, Barging: true}, &claim{ID: "a", Owner: "a", Weight: 1, Token: 1}
	held.Spec = barges
	l = lines.New([]*claim{held, {ID: "b", Owner: "b", Spec: lock, Weight: 1, InTurn: true, Token: 2}})
	d := &engine.Claim{Spec: barges, ID: "d", Owner: "d", Weight: 1}
	if step, _, err := l.Next(d, "d", nil, true, true); step != lines.Append || err != nil { // else b, which has not looked, is granted beside d when a goes
		t.Errorf("d barges past b: %v, %v", step, err)
	}
}
