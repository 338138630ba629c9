package redisengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

func dial(t testing.TB, addr string) rueidis.Client {
	t.Helper()
	return dialTo(t, rueidis.ClientOption{InitAddress: []string{addr}})
}

// dialOne is dial to one server, also of a cluster.
func dialOne(t testing.TB, addr string) rueidis.Client {
	t.Helper()
	return dialTo(t, rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true})
}

func dialTo(t testing.TB, option rueidis.ClientOption) rueidis.Client {
	t.Helper()
	option.DisableCache = true
	c, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// model drives the scripts and queue.Apply with the same commands. Scripts reap dead holders
// lazily. So after each command every live claim that waits looks, in the server as in the model;
// then both must agree.
type model struct {
	ctx      context.Context
	eng      *Engine
	name     string
	sessions []*session
	dead     map[string]bool
	state    queue.State
	ids      []string // every claim that ever entered
	next     int
}

func (m *model) clock() queue.Clock {
	return queue.Clock{Now: 1, Mint: 1, Ends: func(s string) int64 {
		if m.dead[s] {
			return 0
		}
		return 2
	}}
}

func (m *model) apply(r queue.Request) queue.Outcome {
	var out queue.Outcome
	m.state, out = queue.Apply(m.state, r, m.clock())
	return out
}

// class is the part of an error that the seam promises.
func class(err error) error {
	for _, c := range []error{engine.ErrBusy, engine.ErrGone, engine.ErrMismatch} {
		if errors.Is(err, c) {
			return c
		}
	}
	return err
}

func (m *model) enter(t *rapid.T, s *session, c *engine.Claim, wait bool) {
	grant, err := s.Enter(m.ctx, c, wait)
	if m.dead[s.id] {
		if class(err) != engine.ErrGone {
			t.Fatalf("enter of a dead session: %v, %v", grant, err)
		}
		return
	}
	out := m.apply(queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
		ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
	}})
	if class(err) != class(out.Err) || grant.Held() != (out.Token != 0) {
		t.Fatalf("enter %+v wait %v: server %v %v, model %v %v", c, wait, grant, err, out.Token, out.Err)
	}
}

// leave has the claim left by its session, or evicted.
func (m *model) leave(t *rapid.T, s *session, id string) {
	var err error
	if strings.HasPrefix(id, s.id+".") {
		err = s.Leave(m.ctx, m.name, id)
	} else {
		err = m.eng.Evict(m.ctx, m.name, id)
	}
	out := m.apply(queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: id}})
	if err == nil && m.dead[id[:strings.LastIndexByte(id, '.')]] {
		return // nobody had reaped it yet
	}
	if class(err) != class(out.Err) {
		t.Fatalf("leave %q: server %v, model %v", id, err, out.Err)
	}
}

// resize changes the size that newcomers mostly know. A waiter of the model is told in the server,
// and looks.
func (m *model) resize(t *rapid.T, known *engine.Spec) {
	to := engine.Spec{Kind: engine.KindSemaphore, Capacity: rapid.Int64Range(1, 6).Draw(t, "capacity")}
	err := m.eng.Resize(m.ctx, m.name, to.Capacity)
	m.look(t)
	out := m.apply(queue.Request{Op: queue.Resize, Spec: to})
	if class(err) != class(out.Err) {
		t.Fatalf("resize to %d: server %v, model %v", to.Capacity, err, out.Err)
	}
	if known.Kind == to.Kind && rapid.IntRange(0, 3).Draw(t, "known") > 0 {
		known.Capacity = to.Capacity
	}
}

// kill ends a session in the server as its TTL would.
func (m *model) kill(t *rapid.T, s *session) {
	for _, r := range m.eng.client.Pipeline(m.ctx, s.farewell()) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	m.dead[s.id] = true
}

// expire lets keys of the name be as old as they are when nobody touched them for
// long.
func (m *model) expire(t *rapid.T) {
	left := time.Duration(rapid.IntRange(1, 59).Draw(t, "minutes")) * time.Minute
	for _, key := range m.eng.keys(m.name, "")[:3] {
		if err := m.eng.client.Do(m.ctx, command("PEXPIRE", key, ms(left))).Err; err != nil {
			t.Fatal(err)
		}
	}
}

// lasts checks that the keys of the name go, and together.
func (m *model) lasts(t *rapid.T) {
	left := expires(t, m.eng, m.name)
	for i, is := range left {
		if is < 0 || is != 0 && (is-left[0]).Abs() > time.Second {
			t.Fatalf("key %d expires in %v, of %v", i, is, left)
		}
	}
}

// settle lets every waiter look until nothing changes.
func (m *model) settle(t *rapid.T) {
	for before := -1; before != m.held(); {
		before = m.held()
		for _, id := range m.look(t) {
			m.apply(queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: id}})
		}
	}
}

// look lets all who wait in the model look in the server.
func (m *model) look(t *rapid.T) (waiting []string) {
	for _, c := range m.state.Claims {
		s := m.sessions[slices.IndexFunc(m.sessions, func(s *session) bool { return s.id == c.Session })]
		if c.Token != 0 || m.dead[s.id] {
			continue
		}
		claim := &engine.Claim{Spec: m.state.Spec, Resource: m.name, ID: c.ID, Owner: c.Owner, Weight: c.Weight, Label: c.Label}
		grant, _, err := s.poll(m.ctx, claim)
		if err != nil && !errors.Is(err, errForgotten) {
			t.Fatal(err)
		}
		if err != nil || grant.Held() {
			s.inbox.Forget(c.ID)
		}
		waiting = append(waiting, c.ID)
	}
	return waiting
}

func (m *model) held() (n int) {
	for _, c := range m.state.Claims {
		if c.Token != 0 {
			n++
		}
	}
	return n
}

// agree compares the server with the model.
func (m *model) agree(t *rapid.T) {
	m.lasts(t)
	m.settle(t)
	m.apply(queue.Request{Op: queue.Poll}) // reaps
	is, err := m.eng.Show(m.ctx, m.name)
	if err != nil {
		t.Fatal(err)
	}
	want := m.state.Show(m.name, 1, m.clock().Ends)
	key := func(c engine.ClaimInfo) string {
		return fmt.Sprintf("%s owner %s weight %d held %v", c.ID, c.Owner, c.Weight, c.Token != 0)
	}
	var a, b []string
	for _, c := range is.Claims {
		a = append(a, key(c))
	}
	for _, c := range want.Claims {
		b = append(b, key(c))
	}
	if len(b) > 0 && is.Spec != want.Spec {
		t.Fatalf("server %+v, model %+v", is.Spec, want.Spec)
	}
	if !slices.Equal(a, b) {
		t.Fatalf("server %q\nmodel  %q", a, b)
	}
	for i, x := range want.Claims { // tokens grow and are shared alike
		j := slices.IndexFunc(is.Claims, func(c engine.ClaimInfo) bool { return c.ID == x.ID })
		for _, y := range want.Claims[:i] {
			k := slices.IndexFunc(is.Claims, func(c engine.ClaimInfo) bool { return c.ID == y.ID })
			if (x.Token < y.Token) != (is.Claims[j].Token < is.Claims[k].Token) {
				t.Fatalf("order of tokens: server %v, model %v", is.Claims, want.Claims)
			}
		}
	}
}

func (m *model) close() {
	for _, s := range m.sessions {
		s.Close(m.ctx) //nolint:errcheck // some are dead
	}
}

var specs = []engine.Spec{
	{Kind: engine.KindLock, Capacity: engine.LockCapacity},
	{Kind: engine.KindSemaphore, Capacity: 3},
	{Kind: engine.KindLock, Capacity: engine.LockCapacity, Barging: true},
	{Kind: engine.KindSemaphore, Capacity: 3, Barging: true},
}

func TestScriptsDoAsTheQueue(t *testing.T) {
	checkModel(t, New(dial(t, testservers.SharedRedis(t).Addr), nil))
}

// TestClusterDoesAsTheQueue: the same scripts, with the keys of a cluster.
func TestClusterDoesAsTheQueue(t *testing.T) {
	checkModel(t, New(dial(t, testservers.RedisCluster(t)[0].Addr), &Options{Grace: 100 * time.Millisecond}))
}

func checkModel(t *testing.T, eng *Engine) {
	awaitGrace(t, eng)
	cases := 0
	rapid.Check(t, func(t *rapid.T) {
		cases++
		m := &model{ctx: context.Background(), eng: eng, name: fmt.Sprintf("model {%d}", cases), dead: map[string]bool{}}
		for range 3 {
			s, err := eng.Open(m.ctx, engine.SessionOptions{TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			m.sessions = append(m.sessions, s.(*session))
		}
		defer m.close()
		spec := rapid.SampledFrom(specs).Draw(t, "spec")
		plain := rapid.Bool().Draw(t, "plain") // claims that the short paths are made for, and few others
		t.Repeat(map[string]func(*rapid.T){
			"": m.agree,
			"enter": func(t *rapid.T) {
				s := m.sessions[rapid.IntRange(0, 2).Draw(t, "session")]
				m.next++
				c := &engine.Claim{Spec: spec, Resource: m.name, ID: fmt.Sprintf("%s.%d", s.id, m.next), Label: "l"}
				if rapid.IntRange(0, 19).Draw(t, "other spec") == 0 {
					c.Spec = rapid.SampledFrom(specs).Draw(t, "spec")
				}
				c.Owner = rapid.SampledFrom(append([]string{c.ID, c.ID, c.ID, "p", "q"}, m.ids...)).Draw(t, "owner")
				c.Weight = rapid.SampledFrom([]int64{1, 1, min(2, c.Capacity), c.Capacity}).Draw(t, "weight")
				if plain && rapid.IntRange(0, 29).Draw(t, "not plain") > 0 {
					c.Spec, c.Owner, c.Weight = specs[0], c.ID, specs[0].Capacity
				}
				m.ids = append(m.ids, c.ID)
				wait := rapid.Bool().Draw(t, "wait")
				m.enter(t, s, c, wait)
				if rapid.IntRange(0, 4).Draw(t, "again") == 0 {
					m.enter(t, s, c, wait)
				}
			},
			"resize": func(t *rapid.T) { m.resize(t, &spec) },
			"expire": m.expire,
			"leave": func(t *rapid.T) {
				if len(m.ids) == 0 {
					t.Skip()
				}
				m.leave(t, m.sessions[rapid.IntRange(0, 2).Draw(t, "session")], rapid.SampledFrom(m.ids).Draw(t, "id"))
			},
			"leave holder": func(t *rapid.T) {
				if len(m.state.Claims) == 0 {
					t.Skip()
				}
				m.leave(t, m.sessions[0], m.state.Claims[0].ID)
			},
			"kill": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					m.kill(t, m.sessions[rapid.IntRange(0, 2).Draw(t, "session")])
				}
			},
		})
	})
}

// TestResizeTells: a waiter need not find out by itself that permits were added.
func TestResizeTells(t *testing.T) {
	eng := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, eng)
	s, err := eng.Open(t.Context(), engine.SessionOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background()) //nolint:errcheck // checked elsewhere
	claims := make([]*engine.Claim, 3)
	for i := range claims {
		id := fmt.Sprint(s.ID(), ".", i)
		claims[i] = &engine.Claim{Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: 1}, Resource: "told", ID: id, Owner: id, Weight: 1}
		if g, err := s.Enter(t.Context(), claims[i], true); err != nil || g.Held() != (i == 0) {
			t.Fatal(g, err)
		}
	}
	if err := New(dial(t, testservers.SharedRedis(t).Addr), nil).Resize(t.Context(), "told", 3); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, c := range claims[1:] {
		if g, err := s.Await(ctx, c); err != nil || !g.Held() {
			t.Error(g, err)
		}
	}
}

// awaitGrace returns when the grace of a new server is over.
func awaitGrace(t testing.TB, eng *Engine) {
	t.Helper()
	ctx := context.Background()
	s, err := eng.Open(ctx, engine.SessionOptions{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(ctx) //nolint:errcheck // checked elsewhere
	c := &engine.Claim{Spec: specs[0], Resource: "grace", ID: s.ID() + ".grace", Owner: "o", Weight: 1}
	g, err := s.Enter(ctx, c, true)
	for err == nil && !g.Held() {
		if _, err = s.Renew(ctx, nil); err == nil {
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			if g, err = s.Await(short, c); errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			cancel()
		}
	}
	if err == nil {
		err = s.Leave(ctx, "grace", c.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
}
