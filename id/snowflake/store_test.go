package snowflake_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
	"github.com/pawl-go/pawl/internal/idtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	return l.Engine.(engine.Values).Get(ctx, key)
}

func (l *link) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	if err := l.down(); err != nil {
		return 0, err
	}
	is, err := l.Engine.(engine.Values).Put(ctx, key, data, version)
	if l.loseReply.CompareAndSwap(true, false) {
		return 0, errCut
	}
	return is, err
}

func (l *link) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	if err := l.down(); err != nil {
		return engine.Value{}, err
	}
	return l.Engine.(engine.Values).Watch(ctx, key, version)
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
	registers, err := id.Values(p.client, nil)
	if err != nil {
		return err
	}
	g, err := snowflake.New(p.t.Context(), p.client, registers, "ids", &opts)
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

// row collects the IDs of one maker.
type row struct {
	*idtest.Log[int64]
	t *testing.T
}

func newRow(t *testing.T, c *idtest.Checker[int64]) *row { return &row{c.Log(), t} }

func (r *row) next(g id.Generator[int64]) int64 {
	r.t.Helper()
	is, err := g.Next(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	r.Add(is)
	return is
}

// wantUnique fails unless there are so many IDs at least, and nothing is wrong with them.
func wantUnique(t *testing.T, c *idtest.Checker[int64], least int) {
	t.Helper()
	if n, err := c.Check(); err != nil || n < least {
		t.Errorf("%d IDs of %d, %v", n, least, err)
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
