package pawl

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl/engine"
)

// MaxValue is the largest size of a [Value] in bytes.
const MaxValue = engine.MaxValue

// Version is a [Value] as of one time.
type Version struct {
	Data   []byte
	Number uint64 // grows with every change, also across deletion; 0: there is no value
}

// Value is a small value with a version, which is written only if nobody else
// wrote it meanwhile: the optimistic lock, for callers that would rather retry than
// wait. A Value is a description, as [Mutex] is. Values and locks of one name have
// nothing to do with each other.
type Value struct {
	client *Client
	name   string
	key    string // in the store
	err    error  // the mistake in the description, returned at the first use
	again  bool   // an update whose outcome is unknown may be done again
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

// scopedName is the name in the store of a lock or value of a primitive. A name that
// is too long is cut and told apart by its hash.
func scopedName(kind, name string) string {
	scoped := "pawl:" + kind + "/" + name
	if len(scoped) <= MaxName {
		return scoped
	}
	cut := scoped[:MaxName-66]
	for !utf8.ValidString(cut) {
		cut = cut[:len(cut)-1]
	}
	return fmt.Sprintf("%s~%x", cut, sha256.Sum256([]byte(name)))
}

// Name returns the name of the value.
func (v *Value) Name() string { return v.name }

// Get reads the value. A missing value is no error: the version is 0.
func (v *Value) Get(ctx context.Context) (is Version, err error) {
	err = v.call(ctx, "get", func(ctx context.Context) error {
		got, err := v.client.values.Get(ctx, v.key)
		is = Version{got.Data, got.Version}
		return err
	})
	return is, err
}

// Put writes data if the value is still at this version, where 0 means that
// there is no value, and returns the new version. Nil data deletes. [ErrConflict]
// says that the value is at another version, and [ErrInvalid] that data has more than
// [MaxValue] bytes: nothing was written. After [ErrUnavailable] nobody knows
// whether data was written.
func (v *Value) Put(ctx context.Context, data []byte, version uint64) (is Version, err error) {
	if len(data) > MaxValue {
		return is, v.failed("put", invalid("data has %d bytes: at most %d are allowed", len(data), MaxValue))
	}
	err = v.call(ctx, "put", func(ctx context.Context) error {
		written, err := v.client.values.Put(ctx, v.key, data, version)
		is = Version{data, written}
		return err
	})
	return is, err
}

const (
	eagerTries  = 3  // of an update, before it queues
	queuedTries = 64 // after that
)

// Update reads the value, writes the result of fn, and begins
// again when another writer was faster: fn may be called several times, and should do
// nothing else. Nil deletes the value. After three conflicts an update queues
// with all others in conflict, so that n updates at once take O(n) requests. Update
// returns the version that it wrote; the error of fn as it is; [ErrConflict]
// when writers that do not use Update never let it through; and [ErrUnavailable] when
// the store did not answer: then nobody knows whether the value was written.
func (v *Value) Update(ctx context.Context, fn func(Version) ([]byte, error)) (Version, error) {
	is, err := v.tryUpdate(ctx, fn, eagerTries)
	if !errors.Is(err, ErrConflict) {
		return is, err
	}
	turn := newLock(v.client, scopedName("update", v.key), engine.KindLock, engine.LockCapacity, engine.LockCapacity)
	turn.alone = true
	lease, err := turn.Lock(ctx)
	if err != nil {
		return Version{}, v.failed("update", err)
	}
	defer lease.Unlock(ctx) //nolint:errcheck // it only keeps order: versions guard the value
	return v.tryUpdate(ctx, fn, queuedTries)
}

func (v *Value) tryUpdate(ctx context.Context, fn func(Version) ([]byte, error), tries int) (is Version, err error) {
	pause, giveUp := newBackoff(v.client.opts.TTL), time.Now().Add(v.client.opts.TTL)
	for {
		is, err = v.updateOnce(ctx, fn)
		switch {
		case errors.Is(err, ErrConflict):
			tries--
		case v.again && errors.Is(err, ErrUnavailable) && time.Now().Before(giveUp):
		default:
			return is, err
		}
		if tries == 0 {
			return is, err
		}
		if !pause.sleep(ctx, v.client.life) {
			return is, v.classed(ctx, "update", err)
		}
	}
}

func (v *Value) updateOnce(ctx context.Context, fn func(Version) ([]byte, error)) (is Version, err error) {
	if is, err = v.Get(ctx); err != nil {
		return is, err
	}
	data, refused := fn(is)
	if refused != nil {
		return is, refused
	}
	return v.Put(ctx, data, is.Number)
}

// Watch yields the value as it is, and then each change. Of changes that
// follow one another quickly Watch may yield only the last. While the store is
// away Watch waits. It ends when ctx does, and with an error only if there can be
// no more.
func (v *Value) Watch(ctx context.Context) iter.Seq2[Version, error] { return v.watch(ctx, 0) }

// watch does as Watch does, and repeats a value that has not changed for so long;
// 0 is never.
func (v *Value) watch(ctx context.Context, again time.Duration) iter.Seq2[Version, error] {
	return func(yield func(Version, error) bool) {
		is, err := v.read(ctx)
		for err == nil && yield(is, nil) {
			is, err = v.next(ctx, is.Number, again)
		}
		if err != nil && ctx.Err() == nil {
			yield(Version{}, err)
		}
	}
}

// read gets the value, however long that takes.
func (v *Value) read(ctx context.Context) (Version, error) {
	for pause := newBackoff(v.client.opts.TTL); ; {
		is, err := v.Get(ctx)
		if !errors.Is(err, ErrUnavailable) || !pause.sleep(ctx, v.client.life) {
			return is, err
		}
	}
}

// next waits until the value is at another version, or for so long.
func (v *Value) next(ctx context.Context, version uint64, most time.Duration) (is Version, err error) {
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
			return Version{got.Data, got.Version}, nil
		case joined.Err() == nil && bound.Err() != nil:
			return v.read(ctx)
		case joined.Err() != nil, !errors.Is(err, engine.ErrUnavailable), !pause.sleep(ctx, v.client.life):
			return Version{}, v.classed(ctx, "watch", err)
		}
	}
}

// call asks the store once.
func (v *Value) call(ctx context.Context, doing string, ask func(context.Context) error) error {
	if v.err != nil {
		return v.failed(doing, v.err)
	}
	bound, cancel := v.client.bounded(ctx, v.client.opts.RequestTimeout)
	defer cancel()
	return v.classed(ctx, doing, unavailable(bound, doing, ask(bound)))
}

// show asks for the claims of a name that serves the value.
func (v *Value) show(ctx context.Context, doing, name string) (is engine.Resource, err error) {
	err = v.call(ctx, doing, func(ctx context.Context) (err error) {
		is, err = v.client.engine.Show(ctx, name)
		return err
	})
	return is, err
}

// classed turns an error of the store into one for users.
func (v *Value) classed(ctx context.Context, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case v.client.life.Err() != nil:
		err = ErrClosed
	case ctx.Err() != nil:
		err = errors.Join(ctx.Err(), err)
	}
	return v.failed(doing, err)
}

func (v *Value) failed(doing string, err error) error {
	kind, _, _ := strings.Cut(strings.TrimPrefix(v.key, "pawl:"), "/")
	return fmt.Errorf("%s %q: %s: %w", kind, v.name, doing, err)
}

// errUnchanged is how the function of a change says that there is nothing to
// write.
var errUnchanged = errors.New("unchanged")

// change updates the value unless fn says that it is right as it is.
func (v *Value) change(ctx context.Context, fn func(Version) ([]byte, error)) (Version, error) {
	is, err := v.Update(ctx, fn)
	if errors.Is(err, errUnchanged) {
		err = nil
	}
	return is, err
}
