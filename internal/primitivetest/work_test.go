package primitivetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/work"
)

// queueModel is the content of a queue: of each item how often it was claimed, and where it is.
type queueModel struct {
	attempts map[string]int
	free     map[string]bool
	held     []*work.Item
	dead     int
}

// queueAttempts is how often an item is claimed at most.
const queueAttempts = 3

// TestQueue: whatever workers do, a worker that asks gets an item exactly if there is a free
// item. The item has the right number of attempts. An item that was claimed too often is a dead
// letter.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 99), 1, 60).Draw(rt, "steps")
		if err := bubble(t, func(ctx context.Context) error { return compareQueue(ctx, steps) }); err != nil {
			rt.Fatal(err)
		}
	})
}

func compareQueue(ctx context.Context, steps []int) error {
	all, closeAll, err := clients(ctx, 3)
	defer closeAll()
	if err != nil {
		return err
	}
	var queues []*work.Queue
	for i, c := range all {
		queues = append(queues, work.New(c, "p", &work.Options{MaxAttempts: queueAttempts, Random: i == 2}))
	}
	m := queueModel{attempts: make(map[string]int), free: make(map[string]bool)}
	for i, step := range steps {
		<-time.After(time.Second) // then TryClaim asks about all
		if err := m.do(ctx, all[0], queues[step%len(queues)], step/len(queues)); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		live, err := queues[0].Len(ctx)
		dead, deadErr := queues[1].DeadLetters().Len(ctx)
		if want := len(m.free) + len(m.held); live != want || dead != m.dead || err != nil || deadErr != nil {
			return fmt.Errorf("after step %d: %d items and %d dead letters, %v, %v; the model has %d and %d", i, live, dead, err, deadErr, want, m.dead)
		}
	}
	return nil
}

func (m *queueModel) do(ctx context.Context, operator *pawl.Client, q *work.Queue, step int) error {
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
		return q.Put(ctx, items...)
	case 1:
		return m.claim(ctx, q)
	}
	i := n % len(m.held)
	item := m.held[i]
	m.held = append(m.held[:i:i], m.held[i+1:]...)
	switch last := item.Attempts == queueAttempts; {
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
		_, err := operator.Break(ctx, item.Name(), pawl.BreakOptions{})
		return err
	}
}

func (m *queueModel) claim(ctx context.Context, q *work.Queue) error {
	item, err := q.TryClaim(ctx)
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
