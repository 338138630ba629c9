package pawl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// MaxValue is the largest size of a [Value] in bytes.
const MaxValue = engine.MaxValue

// Snapshot is a [Value] at one time.
type Snapshot struct {
	Data   []byte
	Number uint64 // grows with every change, also across deletion; 0: there is no value
}

// Value is a small value with a version. A write succeeds only if nobody else wrote the value
// meanwhile. That is optimistic locking: the caller retries instead of waiting. A Value is a
// description, as [Mutex] is. Values and locks of one name have nothing to do with each other.
type Value struct {
	client *Client
	name   string
	key    string // in the store
	err    error  // the mistake in the description, returned at the first use
	again  bool   // see Idempotent
}

// Value returns the value of this name; see [Client.Mutex] for names.
func (c *Client) Value(name string) *Value { return newValue(c, "value", name) }

func newValue(c *Client, kind, name string) *Value {
	v := &Value{client: c, name: name, key: scopedName(kind, name), err: checkText("name", name)}
	if v.err == nil {
		v.err = c.caps.RefuseFeature(engine.FeatureValues)
	}
	return v
}

// Name returns the name of the value.
func (v *Value) Name() string { return v.name }

// Err returns the error with which every use of the value fails. [ErrInvalid]: the name is not
// allowed. [ErrUnsupported]: the store has no values. Err sends no request.
func (v *Value) Err() error {
	if v.err != nil {
		return v.failed("describe", v.err)
	}
	return nil
}

// Get reads the value. A missing value is no error: the version is 0.
func (v *Value) Get(ctx context.Context) (is Snapshot, err error) {
	err = v.call(ctx, "get", func(ctx context.Context) error {
		got, err := v.client.values.Get(ctx, v.key)
		is = Snapshot{got.Data, got.Version}
		return err
	})
	return is, err
}

// Put writes data if the value is still at this version, and returns the new version. Version 0
// means that there is no value. Nil data deletes the value. [ErrConflict] says that the value is at
// another version, and [ErrInvalid] that data has more than [MaxValue] bytes. In both cases Put
// wrote nothing. After [ErrUnavailable] nobody knows whether data was written.
func (v *Value) Put(ctx context.Context, data []byte, version uint64) (is Snapshot, err error) {
	if len(data) > MaxValue {
		return is, v.failed("put", invalid("data has %d bytes: at most %d are allowed", len(data), MaxValue))
	}
	err = v.call(ctx, "put", func(ctx context.Context) error {
		written, err := v.client.values.Put(ctx, v.key, data, version)
		is = Snapshot{data, written}
		return err
	})
	return is, err
}

// Next waits until the value is at another version than this version, and returns the new state.
// Next goes on waiting while the store is away. Next fails with the error of ctx when ctx ends
// first. Any other error says that no more changes can come.
func (v *Value) Next(ctx context.Context, version uint64) (Snapshot, error) {
	if v.err != nil {
		return Snapshot{}, v.failed("watch", v.err)
	}
	return v.next(ctx, version, 0)
}

// Watch yields the value, and then each change. Of changes that follow one another quickly Watch
// may yield only the last. While the store is away Watch waits. Watch ends when ctx does; it yields
// an error only if no more changes can come.
func (v *Value) Watch(ctx context.Context) iter.Seq2[Snapshot, error] { return v.watch(ctx, 0) }

// watch does the work of Watch. watch also repeats a value that has not changed for the time again; 0
// is never.
func (v *Value) watch(ctx context.Context, again time.Duration) iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		is, err := v.read(ctx)
		for err == nil && yield(is, nil) {
			is, err = v.next(ctx, is.Number, again)
		}
		if err != nil && ctx.Err() == nil {
			yield(Snapshot{}, err)
		}
	}
}

// read gets the value, however long that takes.
func (v *Value) read(ctx context.Context) (Snapshot, error) {
	for pause := newBackoff(v.client.opts.TTL); ; {
		is, err := v.Get(ctx)
		if !errors.Is(err, ErrUnavailable) {
			return is, err
		}
		if !pause.sleep(ctx, v.client.life) {
			return is, v.failed("get", v.client.ended(ctx, err))
		}
	}
}

// next waits until the value is at another version, or at most the time most; 0 is without end.
func (v *Value) next(ctx context.Context, version uint64, most time.Duration) (is Snapshot, err error) {
	joined, cancel := join(ctx, v.client.life)
	defer cancel()
	bound := joined
	if most > 0 {
		var stop context.CancelFunc
		bound, stop = context.WithTimeout(joined, most)
		defer stop()
	}
	for pause := newBackoff(v.client.opts.TTL); ; {
		got, err := v.client.values.Watch(bound, v.key, version)
		switch {
		case err == nil:
			return Snapshot{got.Data, got.Version}, nil
		case joined.Err() == nil && bound.Err() != nil:
			return v.read(ctx)
		case joined.Err() != nil, !errors.Is(err, engine.ErrUnavailable), !pause.sleep(ctx, v.client.life):
			return Snapshot{}, v.failed("watch", v.client.ended(ctx, err))
		}
	}
}

// call asks the store once, and turns its error into an error for users.
func (v *Value) call(ctx context.Context, doing string, ask func(context.Context) error) error {
	err := v.err
	if err == nil {
		err = v.client.ask(ctx, doing, ask)
	}
	if err != nil {
		return v.failed(doing, err)
	}
	return nil
}

// claims reads the claims of a name that serves the value.
func (v *Value) claims(ctx context.Context, doing, name string) (engine.Resource, error) {
	is, err := v.client.claims(ctx, name)
	if err != nil {
		err = v.failed(doing, err)
	}
	return is, err
}

func (v *Value) failed(doing string, err error) error {
	kind, _, _ := strings.Cut(strings.TrimPrefix(v.key, "pawl:"), "/")
	return fmt.Errorf("%s %q: %s: %w", kind, v.name, doing, err)
}
