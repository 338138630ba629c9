package snowflake_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
)

// link is a store as one process sees it.
type link struct {
	engine.Engine
	cut       atomic.Bool // no request arrives
	loseReply atomic.Bool // of the next write
}

var errCut = engine.Unavailable("ask", errors.New("the link is cut"))

func (l *link) down() error {
	if l.cut.Load() {
		return errCut
	}
	return nil
}

func (l *link) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	if err := l.down(); err != nil {
		return nil, err
	}
	s, err := l.Engine.Open(ctx, opts)
	return &linkSession{s, l}, err
}

func (l *link) Show(ctx context.Context, name string) (engine.Resource, error) {
	if err := l.down(); err != nil {
		return engine.Resource{}, err
	}
	return l.Engine.Show(ctx, name)
}

func (l *link) Get(ctx context.Context, key string) (engine.Value, error) {
	if err := l.down(); err != nil {
		return engine.Value{}, err
	}
	return l.Engine.Get(ctx, key)
}

func (l *link) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	if err := l.down(); err != nil {
		return 0, err
	}
	is, err := l.Engine.Put(ctx, key, data, version)
	if l.loseReply.CompareAndSwap(true, false) {
		return 0, errCut
	}
	return is, err
}

type linkSession struct {
	engine.Session
	link *link
}

func (s *linkSession) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	if err := s.link.down(); err != nil {
		return engine.Grant{}, err
	}
	return s.Session.Enter(ctx, c, wait)
}

func (s *linkSession) Leave(ctx context.Context, resource, claim string) error {
	if err := s.link.down(); err != nil {
		return err
	}
	return s.Session.Leave(ctx, resource, claim)
}

func (s *linkSession) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	if err := s.link.down(); err != nil {
		return nil, err
	}
	return s.Session.Renew(ctx, held)
}

func (s *linkSession) Close(ctx context.Context) error {
	if s.link.cut.Load() {
		ended, end := context.WithCancel(ctx)
		end()
		return s.Session.Close(ended) // a process that died says no farewell
	}
	return s.Session.Close(ctx)
}

// marks are marks on the values of a store.
type marks struct{ client *pawl.Client }

func (m marks) Mark(name string) id.Mark  { return mark{m.client.Value("mark/" + name)} }
func (m marks) Counter(string) id.Counter { return nil }

type mark struct{ value *pawl.Value }

func (m mark) Load(ctx context.Context) (id.Reading, error) {
	is, err := m.value.Get(ctx)
	if err != nil || is.Number == 0 {
		return id.Reading{}, err
	}
	n, err := strconv.ParseInt(string(is.Data), 10, 64)
	return id.Reading{Value: n, Version: is.Number}, err
}

func (m mark) Raise(ctx context.Context, to int64, from id.Reading) (id.Reading, error) {
	if err := id.CheckRaise(to, from); err != nil {
		return id.Reading{}, err
	}
	is, err := m.value.Put(ctx, strconv.AppendInt(nil, to, 10), from.Version)
	return id.Reading{Value: to, Version: is.Number}, err
}

func (m mark) Settle(ctx context.Context, to int64, from id.Reading) error {
	_, err := m.value.Put(ctx, strconv.AppendInt(nil, to, 10), from.Version)
	return err
}

// process is a process with a generator of its own, and with a clock of its own.
type process struct {
	*snowflake.Generator
	t      *testing.T
	client *pawl.Client
	link   *link
	skew   atomic.Int64 // of its clock

	mu     sync.Mutex
	events []snowflake.Event
}

// layout has an epoch before the fake time of tests.
var layout = snowflake.Layout{Epoch: time.Date(1999, 12, 1, 0, 0, 0, 0, time.UTC)}

func newProcess(t *testing.T, eng engine.Engine) *process {
	t.Helper()
	p := &process{t: t, link: &link{Engine: eng}}
	var err error
	if p.client, err = pawl.New(t.Context(), p.link, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.client.Close(context.Background()) }) //nolint:errcheck // some are cut off
	return p
}

func (p *process) clock() time.Time { return time.Now().Add(time.Duration(p.skew.Load())) }

// start starts a generator with the clock of the process.
func (p *process) start(opts snowflake.Options) error {
	if opts.Layout == (snowflake.Layout{}) {
		opts.Layout = layout
	}
	opts.Clock = p.clock
	opts.Observe = func(e snowflake.Event) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.events = append(p.events, e)
	}
	g, err := snowflake.New(p.t.Context(), p.client, marks{p.client}, "ids", &opts)
	p.Generator = g
	if err == nil {
		p.t.Cleanup(func() { g.Close(context.Background()) }) //nolint:errcheck // some are cut off
	}
	return err
}

func begin(t *testing.T, eng engine.Engine, skew time.Duration) *process {
	t.Helper()
	p := newProcess(t, eng)
	p.skew.Store(int64(skew))
	if err := p.start(snowflake.Options{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// dies ends a process as a crash does: nobody hears of it.
func (p *process) dies() {
	p.link.cut.Store(true)
	p.Close(context.Background())        //nolint:errcheck // it is cut off
	p.client.Close(context.Background()) //nolint:errcheck // as above
}

// leads returns the leads that were told, and for how many numbers they were too large.
func (p *process) leads() (leads []time.Duration, tooLarge int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		leads = append(leads, e.Lead)
		if errors.Is(e.Err, snowflake.ErrLead) {
			tooLarge++
		}
	}
	return leads, tooLarge
}

func (p *process) told(want error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if errors.Is(e.Err, want) {
			return true
		}
	}
	return false
}

// checker finds IDs that were made twice, and IDs of one maker that fall.
type checker struct {
	mu    sync.Mutex
	seen  map[int64]bool
	twice int
	fell  int
}

func (c *checker) add(ids ...int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = make(map[int64]bool)
	}
	for _, id := range ids {
		if c.seen[id] {
			c.twice++
		}
		c.seen[id] = true
	}
}

// row checks the IDs of one maker.
type row struct {
	*checker
	t    *testing.T
	last int64
}

func (r *row) next(g id.Generator[int64]) int64 {
	r.t.Helper()
	is, err := g.Next(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if is <= r.last {
		r.t.Errorf("%d after %d", is, r.last)
	}
	r.add(is)
	r.last = is
	return is
}

func (c *checker) wantUnique(t *testing.T, least int) {
	t.Helper()
	if c.twice > 0 || c.fell > 0 || len(c.seen) < least {
		t.Errorf("%d IDs, %d of them twice, and %d fell", len(c.seen), c.twice, c.fell)
	}
}

func wantErr(t *testing.T, err error, wants ...error) {
	t.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			t.Fatalf("error %v does not match %q", err, want)
		}
	}
}

func pass(d time.Duration) { <-time.After(d) }

var newStore = memengine.New
