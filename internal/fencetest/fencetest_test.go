package fencetest_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/fencetest"
)

// register is a resource without a guard of its own.
type register struct{ token atomic.Uint64 }

func (r *register) write(_ context.Context, token fence.Token) error {
	r.token.Store(uint64(token))
	return nil
}

func (r *register) read(context.Context) (fence.Token, error) {
	return fence.Token(r.token.Load()), nil
}

// The tests of each guard show that Race finds nothing wrong with a right guard.
func TestRaceFindsWhatIsWrong(t *testing.T) {
	var bare, checked, deaf register
	var guard fence.Memory
	for name, r := range map[string]fencetest.Resource{
		"no guard": {Write: bare.write, Read: bare.read},
		"refuses all": {Read: deaf.read, Write: func(_ context.Context, token fence.Token) error {
			return fence.Stale("deaf", token)
		}},
		"forgets between": {Read: checked.read, Write: func(ctx context.Context, token fence.Token) error {
			if err := new(fence.Memory).Check(ctx, "it", token); err != nil {
				return err
			}
			return checked.write(ctx, token)
		}},
		"accepts and writes nothing": {Read: func(context.Context) (fence.Token, error) { return 0, nil },
			Write: func(ctx context.Context, token fence.Token) error { return guard.Check(ctx, "it", token) }},
	} {
		if err := fencetest.Race(t.Context(), r, 4, 50); err == nil {
			t.Errorf("%s: nothing found", name)
		}
	}
}

type guardFunc func(resource string, token fence.Token) error

func (g guardFunc) Check(_ context.Context, resource string, token fence.Token) error {
	return g(resource, token)
}

func TestContractFindsWhatIsWrong(t *testing.T) {
	for name, guard := range map[string]guardFunc{
		"accepts all":    func(string, fence.Token) error { return nil },
		"refuses all":    fence.Stale,
		"validates only": fence.Validate,
	} {
		if err := fencetest.Contract(t.Context(), guard, ""); err == nil {
			t.Errorf("%s: nothing found", name)
		}
	}
}
