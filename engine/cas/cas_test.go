package cas_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/cas"
	"github.com/pawl-go/pawl/enginetest/model"
)

// opener returns a function that opens engines on one store.
func opener(store cas.Store, clock bool) func(t *testing.T) engine.Engine {
	caps := engine.Caps{Name: "map", Failover: engine.FailoverNone, Processes: engine.ReachProcess, MinTTL: 100 * time.Millisecond}
	if clock {
		caps.Expiry = engine.ExpiryMonotonic
	}
	return func(t *testing.T) engine.Engine {
		e := cas.New(store, cas.Options{Caps: caps})
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		return e
	}
}

func TestAgainstQueue(t *testing.T) {
	model.Run(t, opener(cas.NewInMemory(false), false)(t), nil)
}
