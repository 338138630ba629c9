package sqliteengine

import (
	"context"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Get implements [engine.Engine].
func (e *Engine) Get(ctx context.Context, key string) (v engine.Value, err error) {
	err = e.use(ctx, "get", func(t *tx) error {
		return found(t.get(`SELECT data, version FROM pawl_values WHERE name = ?`, args{key}, &v.Data, &v.Version))
	})
	return v, err
}

// Put implements [engine.Engine].
func (e *Engine) Put(ctx context.Context, key string, data []byte, version uint64) (written uint64, err error) {
	var is uint64
	err = e.transact(ctx, "put", "", func(t *tx) error {
		err := found(t.get(`SELECT version FROM pawl_values WHERE name = ?`, args{key}, &is))
		switch {
		case err != nil || is != version:
			return err
		case data == nil:
			return t.exec(`DELETE FROM pawl_values WHERE name = ?`, key)
		}
		t.last++
		written = uint64(t.last)
		return t.exec(`INSERT INTO pawl_values (name, version, data) VALUES (?, ?, ?)
			ON CONFLICT DO UPDATE SET version = excluded.version, data = excluded.data`, key, t.last, data)
	})
	if err != nil {
		return 0, err
	}
	if is != version {
		return 0, fmt.Errorf("put: version is %d, not %d: %w", is, version, engine.ErrBusy)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changed)
	e.changed = make(chan struct{})
	return written, nil
}

// Watch implements [engine.Engine]. It is told what this process puts; what
// others put it finds when it polls, for who watches is not in the file.
func (e *Engine) Watch(ctx context.Context, key string, version uint64) (engine.Value, error) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		v, err := e.Get(ctx, key)
		if err != nil || v.Version != version {
			return v, err
		}
		select {
		case <-changed:
		case <-poll.C:
		case <-ctx.Done():
			return engine.Value{}, ctx.Err()
		}
	}
}
