package snowflake_test

import (
	"context"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/internal/idtest"
)

func parts(t *testing.T, l snowflake.Layout, id int64) snowflake.Parts {
	t.Helper()
	p, err := l.Decompose(id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestGenerator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newStore()
		a, b := begin(t, eng, 0), begin(t, eng, 0)
		var seen idtest.Checker[int64]
		of := map[*process]*row{a: newRow(t, &seen), b: newRow(t, &seen)}
		for range 3 {
			pass(1500 * time.Microsecond)
			now := time.Now()
			for worker, p := range []*process{a, b} {
				for sequence := range int64(3) {
					is := parts(t, layout, of[p].next(p))
					late := now.Sub(is.Time)
					if is.Worker != worker || is.Worker != p.Worker() || is.Sequence != sequence || late < 0 || late >= 2*time.Millisecond {
						t.Errorf("%+v, want worker %d, sequence %d at %v", is, worker, sequence, now)
					}
				}
			}
		}
		many := make([]int64, 10_000)
		if n, err := a.NextN(t.Context(), many); n != len(many) || err != nil {
			t.Fatal(n, err)
		}
		of[a].Add(many...)
		wantUnique(t, &seen, 10_018)
		if n, err := a.NextN(t.Context(), nil); n != 0 || err != nil {
			t.Error(n, err)
		}
		for range 2 {
			if err := a.Close(t.Context()); err != nil {
				t.Error(err)
			}
			_, err := a.Next(t.Context())
			wantErr(t, err, pawl.ErrClosed)
		}
	})
}

// TestCleanRestart goes on exactly where the last holder ended, and not where its reserve ended.
func TestCleanRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newStore()
		var seen idtest.Checker[int64]
		r := newRow(t, &seen)
		for range 50 {
			p := begin(t, eng, 0)
			is := parts(t, layout, r.next(p))
			if lead := is.Time.Sub(time.Now()); lead > 100*time.Millisecond || is.Worker != 0 {
				t.Fatalf("%+v is %v ahead of the clock", is, lead)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wantUnique(t, &seen, 50)
	})
}

type nexter interface {
	Next(context.Context) (int64, error)
}

// naive is a snowflake as the libraries make it: its clock and nothing else.
type naive struct {
	clock          func() time.Time
	last, sequence int64
}

func (n *naive) Next(context.Context) (int64, error) {
	tick := n.clock().Sub(layout.Epoch).Milliseconds()
	if tick == n.last {
		n.sequence++
	} else {
		n.last, n.sequence = tick, 0
	}
	return tick<<22 | n.sequence, nil
}

// TestClocksAndCrashes: clocks that step back and forth by up to an hour, at restarts and meanwhile,
// of processes that end with and without a farewell. The naive way fails the same check.
func TestClocksAndCrashes(t *testing.T) {
	skews := []time.Duration{0, time.Hour, -time.Hour, 30 * time.Minute, -time.Second, 59 * time.Minute, 0, -50 * time.Millisecond}
	run := func(t *testing.T, seen *idtest.Checker[int64], start func(t *testing.T, eng engine.Engine, skew time.Duration) (nexter, *process)) {
		synctest.Test(t, func(t *testing.T) {
			eng := newStore()
			for round := range 40 {
				g, p := start(t, eng, skews[round%len(skews)])
				log := seen.Log()
				for step := range 20 {
					for range 5000 {
						is, err := g.Next(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						log.Add(is)
					}
					pass(50 * time.Millisecond)
					p.skew.Store(int64(skews[(round+step)%len(skews)]))
				}
				switch round % 3 {
				case 0:
					p.Close(t.Context())
				case 1:
					p.dies()
				default: // another process starts beside it
				}
			}
		})
	}
	var ours, wrong idtest.Checker[int64]
	run(t, &ours, func(t *testing.T, eng engine.Engine, skew time.Duration) (nexter, *process) {
		p := begin(t, eng, skew)
		return p, p
	})
	wantUnique(t, &ours, 40*20*5000)
	run(t, &wrong, func(t *testing.T, eng engine.Engine, skew time.Duration) (nexter, *process) {
		p := begin(t, eng, skew)
		return &naive{clock: p.clock}, p
	})
	n, err := wrong.Check()
	if err == nil {
		t.Error("the check finds nothing wrong with a naive snowflake")
	}
	t.Logf("the naive way, in %d IDs: %v", n, err)
}

// TestOutage: the reserve lasts as long as was asked for, and a little longer; then callers wait,
// and go on when the store is back.
func TestOutage(t *testing.T) {
	for _, after := range []time.Duration{0, 999 * time.Millisecond, 1001 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			p := begin(t, newStore(), 0)
			var seen idtest.Checker[int64]
			r := newRow(t, &seen)
			pass(after)
			p.store.Cut()
			away := time.Now()
			for {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				is, err := p.Next(ctx)
				cancel()
				if err != nil {
					wantErr(t, err, context.DeadlineExceeded, pawl.ErrUnavailable)
					break
				}
				r.Add(is)
				pass(10 * time.Millisecond)
			}
			if lasted := time.Since(away) - time.Second; lasted < 3*time.Second || lasted > 4100*time.Millisecond {
				t.Errorf("the reserve lasted %v", lasted)
			}
			if !p.told(pawl.ErrUnavailable) {
				t.Error("nobody was told")
			}
			p.store.Heal()
			is := parts(t, layout, r.next(p))
			if late := time.Since(is.Time); is.Worker != 0 || late > 10*time.Millisecond {
				t.Errorf("%+v, %v late", is, late)
			}
			wantUnique(t, &seen, 300)
		})
	}
}

// TestLostReply: nobody knows who has raised the mark, so the generator takes another number; the
// same one if there is no other.
func TestLostReply(t *testing.T) {
	one := layout
	one.TimeBits, one.SeqBits = 41, 22
	for workers, l := range map[int]snowflake.Layout{1: one, 1024: layout} {
		synctest.Test(t, func(t *testing.T) {
			p := newProcess(t, newStore())
			if err := p.start(snowflake.Options{Layout: l}); err != nil {
				t.Fatal(err)
			}
			var seen idtest.Checker[int64]
			r := newRow(t, &seen)
			r.next(p)
			p.store.Set(faulty.First(1, faulty.LosesReply, nil), faulty.Put)
			for range 300 {
				r.next(p)
				pass(10 * time.Millisecond)
			}
			if !p.told(pawl.ErrConflict) || (p.Worker() == 0) != (workers == 1) {
				t.Errorf("worker %d of %d", p.Worker(), workers)
			}
			wantUnique(t, &seen, 301)
			if holders, err := p.client.Show(t.Context(), "pawl:slots/snowflake/ids"); err != nil || len(holders.Holders) != 1 {
				t.Errorf("%+v, %v", holders, err)
			}
		})
	}
}

// TestLostNumber: a generator whose session is lost goes on by itself, with another number if its
// own is taken. The next holder of that number starts above the reserve.
func TestLostNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newStore()
		p := begin(t, eng, 0)
		var seen idtest.Checker[int64]
		r := newRow(t, &seen)
		r.next(p)
		p.store.Cut()
		pass(20 * time.Second)
		heir := begin(t, eng, -time.Hour)
		other := newRow(t, &seen)
		other.next(heir)
		p.store.Heal()
		r.next(p)
		if p.Worker() != 1 || heir.Worker() != 0 || !p.told(pawl.ErrLost) {
			t.Errorf("worker %d beside %d", p.Worker(), heir.Worker())
		}
		for range 1000 {
			r.next(p)
			other.next(heir)
		}
		wantUnique(t, &seen, 2003)
		if err := p.client.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for err := error(nil); ; {
			if _, err = p.Next(t.Context()); err != nil {
				wantErr(t, err, pawl.ErrClosed)
				break
			}
			pass(100 * time.Millisecond)
		}
	})
}

// TestLead: a clock that was ahead once.
func TestLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newStore()
		var seen idtest.Checker[int64]
		r := newRow(t, &seen)
		wrong := begin(t, eng, time.Hour)
		r.next(wrong)
		wrong.dies()
		pass(20 * time.Second)
		p := begin(t, eng, 0) // goes on from there
		if leads, _ := p.leads(); p.Worker() != 0 || len(leads) != 1 || (leads[0]-time.Hour).Abs() > 20*time.Second {
			t.Errorf("worker %d, leads %v", p.Worker(), leads)
		}
		r.next(p)
		p.dies()
		pass(20 * time.Second)

		worse := begin(t, eng, 24*time.Hour)
		newRow(t, &seen).next(worse)
		worse.dies()
		pass(20 * time.Second)
		p = begin(t, eng, 0) // leaves that number alone
		_, tooLarge := p.leads()
		if tooLarge != 1 || p.Worker() != 1 {
			t.Errorf("worker %d, after %d numbers", p.Worker(), tooLarge)
		}
		is := parts(t, layout, newRow(t, &seen).next(p))
		if late := time.Since(is.Time).Abs(); late > time.Second {
			t.Errorf("%+v is %v off", is, late)
		}
		holders, err := p.client.Show(t.Context(), "pawl:slots/snowflake/ids")
		if err != nil || len(holders.Holders) != 1 {
			t.Errorf("%+v, %v", holders, err)
		}
		wantUnique(t, &seen, 4)
	})
	synctest.Test(t, func(t *testing.T) { // no number is left
		eng := newStore()
		one := snowflake.Options{Layout: snowflake.Layout{TimeBits: 41, SeqBits: 22, Epoch: layout.Epoch}}
		wrong := newProcess(t, eng)
		wrong.skew.Store(int64(24 * time.Hour))
		if err := wrong.start(one); err != nil {
			t.Fatal(err)
		}
		wrong.dies()
		pass(20 * time.Second)
		err := newProcess(t, eng).start(one)
		wantErr(t, err, snowflake.ErrLead)
		for _, says := range []string{"worker 0 is 2000-01-02T00:00:04.", "2000-01-01T00:00:20."} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%v does not say %s", err, says)
			}
		}
		t.Log(err)
		if holders, err := wrong.client.Show(t.Context(), "pawl:slots/snowflake/ids"); err == nil || len(holders.Holders) > 0 {
			t.Errorf("%+v, %v", holders, err)
		}
	})
}

// TestBurst: a burst borrows from the time to come, then callers wait for the clock, with ctx.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := begin(t, newStore(), 0)
		ids := make([]int64, 5_000_000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		n, err := p.NextN(ctx, ids)
		wantErr(t, err, context.DeadlineExceeded)
		if n != 1001*4096 {
			t.Errorf("%d IDs without waiting", n)
		}
		_, err = p.Next(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		began := time.Now()
		if n, err := p.NextN(t.Context(), ids[:409_600]); n != 409_600 || err != nil {
			t.Error(n, err)
		}
		if took := time.Since(began); took < 99*time.Millisecond || took > 101*time.Millisecond {
			t.Errorf("%v for the IDs of 100 ms", took)
		}
		pass(3 * time.Second)
		is, err := p.Next(t.Context())
		if late := time.Since(parts(t, layout, is).Time); err != nil || late < 0 || late > 2*time.Millisecond {
			t.Errorf("%v late, %v", late, err)
		}
	})
}

// TestEnd: the bits of the time end.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newStore()
		l := snowflake.Layout{TimeBits: 13, WorkerBits: 2, SeqBits: 48, Epoch: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}
		p := newProcess(t, eng)
		if err := p.start(snowflake.Options{Layout: l}); err != nil {
			t.Fatal(err)
		}
		var seen idtest.Checker[int64]
		r := newRow(t, &seen)
		for range 8191 {
			r.next(p)
			pass(time.Millisecond)
		}
		var err error
		for err == nil {
			var is int64
			if is, err = p.Next(t.Context()); err == nil && is < 0 {
				t.Fatal(is)
			} else if err == nil {
				r.Add(is)
			}
			pass(time.Millisecond / 4)
		}
		wantErr(t, err, id.ErrExhausted)
		wantUnique(t, &seen, 8191)
		if !strings.Contains(err.Error(), "13 bits of the time end at 2000-01-01T00:00:08.191Z") {
			t.Error(err)
		}
		pass(10 * time.Millisecond)
		wantErr(t, newProcess(t, eng).start(snowflake.Options{Layout: l}), id.ErrExhausted)
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newStore()
		p := newProcess(t, eng)
		for says, opts := range map[string]snowflake.Options{
			"41 + 10 + 13 bits": {Layout: snowflake.Layout{TimeBits: 41, WorkerBits: 10, SeqBits: 13}},
			"41 + 0 + 0 bits":   {Layout: snowflake.Layout{TimeBits: 41}},
			"TimeBits is 53":    {Layout: snowflake.Layout{TimeBits: 53, WorkerBits: 5, SeqBits: 5}},
			"WorkerBits is 13":  {Layout: snowflake.Layout{TimeBits: 41, WorkerBits: 13, SeqBits: 9}},
			"WorkerBits is -1":  {Layout: snowflake.Layout{TimeBits: 41, WorkerBits: -1, SeqBits: 23}},
			"Unit is 1.5ms":     {Layout: snowflake.Layout{Unit: 1500 * time.Microsecond, Epoch: layout.Epoch}},
			"in the future":     {Layout: snowflake.Layout{Epoch: time.Now().Add(time.Millisecond)}},
			"from 1970 on":      {Layout: snowflake.Layout{Epoch: time.Unix(-1, 0)}},
			"Reserve is 1ms":    {Reserve: time.Millisecond},
			"Burst is 2s":       {Burst: 2 * time.Second},
			"MaxLead is 1s":     {MaxLead: time.Second},
		} {
			err := p.start(opts)
			wantErr(t, err, pawl.ErrInvalid)
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%v does not say %q", err, says)
			}
		}
		registers, err := id.Values(p.client, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", strings.Repeat("x", 161), "a\x01"} {
			_, err := snowflake.New(t.Context(), p.client, registers, name, &snowflake.Options{Layout: layout})
			wantErr(t, err, pawl.ErrInvalid)
		}
		for _, key := range []string{"pawl:value/id/mark/snowflake/layout/ids", "pawl:slots/snowflake/ids"} {
			if v, err := eng.Get(t.Context(), key); err != nil || v.Version != 0 {
				t.Errorf("%s was written: %+v, %v", key, v, err)
			}
		}
		if err := p.start(snowflake.Options{}); err != nil {
			t.Fatal(err)
		}
		for _, l := range []snowflake.Layout{
			{TimeBits: 41, WorkerBits: 9, SeqBits: 13, Epoch: layout.Epoch}, {Unit: 2 * time.Millisecond, Epoch: layout.Epoch}, {Epoch: layout.Epoch.Add(time.Millisecond)},
		} {
			err := newProcess(t, eng).start(snowflake.Options{Layout: l})
			wantErr(t, err, pawl.ErrMismatch)
			t.Log(err)
			if !strings.Contains(err.Error(), "have 41/10/12 bits, a unit of 1ms and the epoch 1999-12-01T00:00:00.000Z, not ") {
				t.Error(err)
			}
		}
	})
	if _, err := (snowflake.Layout{}).Decompose(-1); err == nil {
		t.Error("a negative ID has parts")
	}
	if is := parts(t, snowflake.Layout{}, math.MaxInt64); is.Worker != 1023 || is.Sequence != 4095 || is.Time.Year() != 2093 {
		t.Errorf("%+v", is)
	}
}

// TestNamesApart: a name that looks like another name with the number of a worker has marks of its own.
func TestNamesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newStore())
		registers, err := id.Values(p.client, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"ids/0", "ids", "ids/1", "0/ids", "layout/ids", "ids"} {
			opts := &snowflake.Options{Layout: layout, Observe: func(e snowflake.Event) {
				if e.Err != nil || e.Lead > 0 {
					t.Errorf("%s: %+v", name, e)
				}
			}}
			g, err := snowflake.New(t.Context(), p.client, registers, name, opts)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			defer g.Close(context.Background()) //nolint:errcheck // the test ends
		}
	})
}

// TestManyAtOnce: goroutines of several generators.
func TestManyAtOnce(t *testing.T) {
	const generators, goroutines, each = 4, 4, 50_000
	eng := newStore()
	var seen idtest.Checker[int64]
	var all sync.WaitGroup
	for range generators {
		p := newProcess(t, eng)
		if err := p.start(snowflake.Options{}); err != nil {
			t.Fatal(err)
		}
		for i := range goroutines {
			log := seen.Log()
			all.Go(func() {
				some := make([]int64, 1+99*(i%2)) // one at a time, or a hundred
				for range each / len(some) {
					if n, err := p.NextN(t.Context(), some); n != len(some) || err != nil {
						t.Error(n, err)
						return
					}
					log.Add(some...)
				}
			})
		}
	}
	all.Wait()
	wantUnique(t, &seen, generators*goroutines*each)
}
