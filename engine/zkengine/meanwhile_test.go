package zkengine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

const (
	opSync = 9
)

// TestDeleteNothing: a value is deleted that is not there as far as the server knows. The server catches up before the answer.
func TestDeleteNothing(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	near, key := newEngine(t, addr), fmt.Sprint(t.Name(), time.Now().UnixNano())
	armed := true
	e := tap(t, addr, func(op int32, _ string) fate {
		if op == opSync && armed {
			armed = false
			if _, err := near.Put(sessiontest.Soon(t), key, []byte("x"), 0); err != nil {
				t.Error(err)
			}
		}
		return arrives
	})
	if _, err := e.Put(sessiontest.Soon(t), key, nil, 0); !errors.Is(err, engine.ErrConflict) {
		t.Errorf("got %v", err)
	}
}
