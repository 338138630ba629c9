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
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/internal/idtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is a process with a generator of its own, and with a clock of its own.
type process struct {
	*snowflake.Generator
	t      *testing.T
	client *pawl.Client
	store  *faulty.Store // as this process sees it
	skew   atomic.Int64  // of its clock

	mu     sync.Mutex
	events []snowflake.Event
}

// layout has an epoch before the fake time of tests.
var layout = snowflake.Layout{Epoch: time.Date(1999, 12, 1, 0, 0, 0, 0, time.UTC)}

func newProcess(t *testing.T, eng engine.Engine) *process {
	t.Helper()
	p := &process{t: t, store: faulty.New(eng)}
	var err error
	if p.client, err = pawl.New(t.Context(), p.store, nil); err != nil {
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
	p.store.Cut()
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
