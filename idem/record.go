package idem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/fence"
)

// State is how far the work for a key has come.
type State string

const (
	// Claimed is a key whose work has begun and is not completed.
	Claimed State = "claimed"
	// Done is a key with a kept result.
	Done State = "done"
	// Used is a key of [Once], which has no result.
	Used State = "used"
)

// recordFormat is the layout of a record. A later layout has a larger number, which this build refuses.
const recordFormat = 1

// record is what a store keeps under a key: one line of JSON and, after it, the result.
type record struct {
	Format      int         `json:"v"`
	Scope       string      `json:"scope"`
	ID          string      `json:"id"`
	State       State       `json:"state"`
	Fingerprint []byte      `json:"fp,omitempty"`
	Token       fence.Token `json:"token,omitempty"`  // of the lock of the last claim
	Attempt     string      `json:"attempt"`          // random, of the call that wrote the last claim
	Attempts    int         `json:"attempts"`         // how often the key was claimed
	Began       int64       `json:"began"`            // the first claim, in ms since 1970
	Expires     int64       `json:"expires"`          // in ms since 1970
	Points      []point     `json:"points,omitempty"` // reached, in order; none when done
	Size        int         `json:"size,omitempty"`   // of the result
	Parts       int         `json:"parts,omitempty"`  // in which the result is; 0: it is in the record
	result      []byte
}

// point is a recovery point that a claim has reached.
type point struct {
	Name string `json:"name"`
	Data []byte `json:"data,omitempty"`
}

func (r *record) encode() ([]byte, error) {
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	lines.SetEscapeHTML(false)
	if err := lines.Encode(r); err != nil {
		return nil, err
	}
	return append(text.Bytes(), r.result...), nil
}

// decode reads the record in a value; nil: there is none.
func decode(is pawl.Snapshot) (*record, error) {
	if is.Number == 0 {
		return nil, nil
	}
	line, result, _ := bytes.Cut(is.Data, []byte("\n"))
	var r record
	switch err := json.Unmarshal(line, &r); {
	case err != nil:
		return nil, fmt.Errorf("%w: the store has no record of this package under the key: %w", pawl.ErrMismatch, err)
	case r.Format != recordFormat:
		return nil, fmt.Errorf("%w: the record has format %d and this build reads format %d", pawl.ErrUnsupported, r.Format, recordFormat)
	}
	r.result = result
	return &r, nil
}

func (r *record) expired(now time.Time) bool { return r != nil && now.UnixMilli() >= r.Expires }

func (r *record) point(name string) ([]byte, bool) {
	i := slices.IndexFunc(r.Points, func(p point) bool { return p.Name == name })
	if i < 0 {
		return nil, false
	}
	return r.Points[i].Data, true
}

func (r *record) key() Key { return Key{Scope: r.Scope, ID: r.ID} }

func (r *record) print() (f Fingerprint) {
	copy(f[:], r.Fingerprint)
	return f
}

// claimant is a call of Begin or Once: what it brings to the record of its key.
type claimant struct {
	key     Key
	print   Fingerprint
	token   fence.Token // 0: it holds no lock yet, or needs none
	attempt string
	now     time.Time
	expiry  time.Duration
}

// errRepeat says that the record has the outcome of the key already.
var errRepeat = errors.New("repeat")

// The functions below are the whole protocol. Each says what a record becomes by a request, and
// writes nothing. The caller writes the result at the version that it read.

// claim returns the record of a key after this call has claimed it. claim fails with errRepeat when
// the work is done, and with ErrReused, or with ErrTakenOver when a later holder claimed the key.
// claim returns the record itself when the claim is this call's already, because a reply was lost.
func (c claimant) claim(is *record, state State) (*record, error) {
	fresh := &record{
		Format: recordFormat, Scope: c.key.Scope, ID: c.key.ID, State: state, Token: c.token,
		Attempt: c.attempt, Attempts: 1, Began: c.now.UnixMilli(), Expires: c.now.Add(c.expiry).UnixMilli(),
	}
	if c.print != (Fingerprint{}) {
		fresh.Fingerprint = c.print[:]
	}
	switch {
	case is == nil:
		return fresh, nil
	case is.Attempt == c.attempt:
		return is, nil
	case is.State == Claimed && is.Token >= c.token:
		return nil, fmt.Errorf("%w: its token is %d, and that of this caller is %d", ErrTakenOver, is.Token, c.token)
	case is.expired(c.now):
		return fresh, nil
	case is.print().Differs(c.print):
		return nil, ErrReused
	case is.State != Claimed:
		return nil, errRepeat
	}
	fresh.Attempts, fresh.Began, fresh.Points = is.Attempts+1, is.Began, is.Points
	if fresh.Fingerprint == nil {
		fresh.Fingerprint = is.Fingerprint
	}
	return fresh, nil
}

// own returns ErrTakenOver unless the last claim is of this attempt.
func (r *record) own(attempt string) error {
	switch {
	case r == nil:
		return fmt.Errorf("%w: the key is in the store no more", ErrTakenOver)
	case r.Attempt != attempt:
		return fmt.Errorf("%w: the key is %s by attempt %d with token %d", ErrTakenOver, r.State, r.Attempts, r.Token)
	}
	return nil
}

// outcome is a result as a record has it.
type outcome struct {
	size, parts int
	inline      []byte
}

// complete returns the record with the result, or itself when this attempt has completed it. All
// else stays, the fingerprint too; only points go, because nobody recovers any more.
func (r *record) complete(attempt string, with outcome, expires time.Time) (*record, error) {
	if err := r.own(attempt); err != nil || r.State == Done {
		return r, err
	}
	done := *r
	done.State, done.Points, done.Expires = Done, nil, expires.UnixMilli()
	done.Size, done.Parts, done.result = with.size, with.parts, with.inline
	return &done, nil
}

// reach returns the record with one more point, or itself when this attempt has reached it.
func (r *record) reach(attempt string, p point, expires time.Time) (*record, error) {
	if err := r.own(attempt); err != nil {
		return r, err
	}
	if _, reached := r.point(p.Name); reached {
		return r, nil
	}
	size := len(p.Name) + len(p.Data)
	for _, p := range r.Points {
		size += len(p.Name) + len(p.Data)
	}
	if size > MaxPoints {
		return r, fmt.Errorf("%w: the points have %d bytes with %q: at most %d are allowed", pawl.ErrInvalid, size, p.Name, MaxPoints)
	}
	next := *r
	next.Points, next.Expires = append(slices.Clip(r.Points), p), expires.UnixMilli()
	if text, err := next.encode(); err != nil || len(text) > maxRecord {
		return r, errors.Join(fmt.Errorf("%w: the points make a record of %d bytes with %q: at most %d are allowed", pawl.ErrInvalid, len(text), p.Name, maxRecord), err)
	}
	return &next, nil
}

// abort returns the rest of the record when this attempt gives up. That is nil, or the record itself
// if the next caller has to know of it. Points tell of effects that must not be repeated, and an
// earlier attempt of a worker that died, whose effect may have happened.
func (r *record) abort(attempt string) (*record, error) {
	switch {
	case r == nil: // it was aborted, and the reply was lost
		return nil, nil
	case r.State != Claimed || len(r.Points) > 0 || r.Attempts > 1:
		return r, r.own(attempt)
	}
	return nil, r.own(attempt)
}
