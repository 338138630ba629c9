package redisengine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestSubscribingEnds: what takes a connection of its own ends with its context,
// also when the server hangs before it has one.
func TestSubscribingEnds(t *testing.T) {
	link := proxy.New(t, testservers.SharedRedis(t).Addr)
	e := New(dial(t, link.Addr), nil)
	link.Freeze()
	for what, call := range map[string]func(context.Context) error{
		"open": func(ctx context.Context) error {
			_, err := e.Open(ctx, engine.SessionOptions{TTL: time.Minute})
			return err
		},
		"watch": func(ctx context.Context) error { _, err := e.Watch(ctx, "value", 0); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		err := call(ctx)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Second {
			t.Errorf("%s: %v after %v", what, err, took)
		}
		cancel()
	}
	link.Heal() // so that none is left
}
