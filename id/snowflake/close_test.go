package snowflake_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
)

// deaf are registers whose marks do not return while they are deaf, whatever their context says.
type deaf struct {
	id.Registers
	until chan struct{}
	on    atomic.Bool
}

func (d *deaf) Mark(name string) id.Mark { return deafMark{d.Registers.Mark(name), d} }

type deafMark struct {
	id.Mark
	registers *deaf
}

func (m deafMark) Raise(ctx context.Context, to int64, from id.Reading) (id.Reading, error) {
	if m.registers.on.Load() {
		<-m.registers.until
	}
	return m.Mark.Raise(ctx, to, from)
}

// TestCloseIsBounded: the mark of somebody does not look at its context, and Close returns in time.
// Later calls get no ID, also of a reserve that is left.
func TestCloseIsBounded(t *testing.T) {
	for name, after := range map[string]time.Duration{"reserve left": 1500 * time.Millisecond, "reserve used up": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(t, newStore())
				values, err := id.Values(p.client, nil)
				if err != nil {
					t.Fatal(err)
				}
				d := &deaf{Registers: values, until: make(chan struct{})}
				g, err := snowflake.New(t.Context(), p.client, d, "ids", &snowflake.Options{Layout: layout})
				if err != nil {
					t.Fatal(err)
				}
				d.on.Store(true)
				pass(after) // the generator raises its mark
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if after == time.Minute {
					_, err := g.Next(ctx)
					wantErr(t, err, context.DeadlineExceeded, pawl.ErrUnavailable)
					ctx, cancel = context.WithTimeout(t.Context(), time.Second)
					defer cancel()
				}
				began := time.Now()
				wantErr(t, g.Close(ctx), context.DeadlineExceeded)
				if took := time.Since(began); took != time.Second {
					t.Errorf("Close took %v", took)
				}
				_, err = g.Next(t.Context())
				wantErr(t, err, pawl.ErrClosed)
				close(d.until)
			})
		})
	}
}

// TestCloseAfterTheEnd: a program that ends closes with the ctx whose end it saw. The last time and the worker number
// come back all the same.
func TestCloseAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newStore()
		for range 20 {
			p := begin(t, eng, 0)
			if leads, _ := p.leads(); p.Worker() != 0 || leads[0] > 100*time.Millisecond {
				t.Fatalf("worker %d, %v ahead of the clock", p.Worker(), leads)
			}
			if _, err := p.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := p.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}
