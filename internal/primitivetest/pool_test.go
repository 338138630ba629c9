package primitivetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
)

// poolModel is what is in a pool: of each item how often it was claimed, and where it is.
type poolModel struct {
	attempts map[string]int
	free     map[string]bool
	held     []*pawl.Item
	dead     int
}

// poolAttempts is how often an item is claimed at most.
const poolAttempts = 3

// TestPool: whatever workers do, one that asks gets an item exactly if there is a free one, with
// the right number of attempts, and what was claimed too often is a dead letter.
func TestPool(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 99), 1, 60).Draw(rt, "steps")
		if err := bubble(t, func(ctx context.Context) error { return comparePool(ctx, steps) }); err != nil {
			rt.Fatal(err)
		}
	})
}

func comparePool(ctx context.Context, steps []int) error {
	all, closeAll, err := clients(ctx, 3)
	defer closeAll()
	if err != nil {
		return err
	}
	var pools []*pawl.Pool
	for i, c := range all {
		pools = append(pools, c.Pool("p", &pawl.PoolOptions{MaxAttempts: poolAttempts, Random: i == 2}))
	}
	m := poolModel{attempts: make(map[string]int), free: make(map[string]bool)}
	for i, step := range steps {
		<-time.After(time.Second) // then TryClaim asks about all
		if err := m.do(ctx, pools[step%len(pools)], step/len(pools)); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		live, err := pools[0].Len(ctx)
		dead, deadErr := pools[1].DeadLetters().Len(ctx)
		if want := len(m.free) + len(m.held); live != want || dead != m.dead || err != nil || deadErr != nil {
			return fmt.Errorf("after step %d: %d items and %d dead letters, %v, %v; the model has %d and %d", i, live, dead, err, deadErr, want, m.dead)
		}
	}
	return nil
}

func (m *poolModel) do(ctx context.Context, p *pawl.Pool, step int) error {
	verb, n := step%6, step/6
	if verb > 1 && len(m.held) == 0 {
		return nil
	}
	switch verb {
	case 0:
		var items [][]byte
		for range n + 1 {
			name := fmt.Sprint("item ", len(m.attempts))
			m.attempts[name], m.free[name] = 0, true
			items = append(items, []byte(name))
		}
		return p.Put(ctx, items...)
	case 1:
		return m.claim(ctx, p)
	}
	i := n % len(m.held)
	item := m.held[i]
	m.held = append(m.held[:i:i], m.held[i+1:]...)
	switch last := item.Attempts == poolAttempts; {
	case verb == 2:
		return item.Done(ctx)
	case verb == 3:
		m.dead++
		return item.Bury(ctx)
	case last:
		m.dead++
		return item.Return(ctx)
	case verb == 4:
		m.free[string(item.Data)] = true
		return item.Return(ctx)
	default: // as if its worker had died
		m.free[string(item.Data)] = true
		return item.Unlock(ctx)
	}
}

func (m *poolModel) claim(ctx context.Context, p *pawl.Pool) error {
	item, err := p.TryClaim(ctx)
	if errors.Is(err, pawl.ErrNotAcquired) && len(m.free) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w; the model has %v", err, m.free)
	}
	name := string(item.Data)
	m.attempts[name]++
	if !m.free[name] || item.Attempts != m.attempts[name] {
		return fmt.Errorf("attempt %d of %q, which is free: %v; the model has %d", item.Attempts, name, m.free[name], m.attempts[name])
	}
	delete(m.free, name)
	m.held = append(m.held, item)
	return nil
}
