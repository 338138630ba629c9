package idem

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/pawl-go/pawl"
)

// A result that does not fit into the record lies in values of its own, the parts. The parts are written
// before the record names them, under the attempt of the claim, so nobody else writes them. Parts
// that no record names are of a worker that died or was overtaken, and are swept.

// partSize is how much of a result a record or a part has at most; the rest is for the header.
const partSize = pawl.MaxValue - 4<<10

// partPrefix begins the names of parts: part/NAME/ATTEMPT/NUMBER.
const partPrefix = "part/"

func (l *Leases) part(key Key, attempt string, number int) *pawl.Value {
	return l.scope.Value(partPrefix + key.Name() + "/" + attempt + "/" + strconv.Itoa(number))
}

// ofPart returns the name of the key and the attempt in the name of a part.
func ofPart(name string) (key, attempt string, ok bool) {
	name = strings.TrimPrefix(name, partPrefix)
	number := strings.LastIndexByte(name, '/')
	if number < 0 {
		return "", "", false
	}
	at := strings.LastIndexByte(name[:number], '/')
	if at < 0 {
		return "", "", false
	}
	return name[:at], name[at+1 : number], true
}

// store writes the parts of a result that needs them, and returns how many there are and what the
// record has to hold.
func (l *Leases) store(ctx context.Context, key Key, attempt string, result []byte) (parts int, inline []byte, err error) {
	if len(result) <= partSize {
		return 0, result, nil
	}
	for ; len(result) > 0; parts++ {
		piece := result[:min(len(result), partSize)]
		_, err := l.part(key, attempt, parts).Idempotent().Update(ctx, func(is pawl.Snapshot) ([]byte, error) {
			if is.Number != 0 { // the reply was lost
				return nil, pawl.ErrUnchanged
			}
			return piece, nil
		})
		if err != nil {
			return 0, nil, err
		}
		result = result[len(piece):]
	}
	return parts, nil, nil
}

// fetch returns the whole result of a record.
func (l *Leases) fetch(ctx context.Context, is *record) ([]byte, error) {
	if is.Parts == 0 {
		return is.result, nil
	}
	var result []byte
	for i := range is.Parts {
		part, err := l.part(is.key(), is.Attempt, i).Get(ctx)
		if err != nil {
			return nil, err
		}
		result = append(result, part.Data...)
	}
	if len(result) != is.Size {
		return nil, fmt.Errorf("%w: the key is done, and %d of %d bytes of its result are in the store", pawl.ErrMismatch, len(result), is.Size)
	}
	return result, nil
}

// discard removes the parts of a record that is no longer there.
func (l *Leases) discard(ctx context.Context, is *record) error {
	for i := range is.Parts {
		if err := remove(ctx, l.part(is.key(), is.Attempt, i)); err != nil {
			return err
		}
	}
	return nil
}

func remove(ctx context.Context, v *pawl.Value) error {
	_, err := v.Idempotent().Update(ctx, func(is pawl.Snapshot) ([]byte, error) {
		if is.Number == 0 {
			return nil, pawl.ErrUnchanged
		}
		return nil, nil
	})
	return err
}

// sweepParts removes the parts that no record names.
func (l *Leases) sweepParts(ctx context.Context) error {
	live := make(map[string]string) // an attempt that may have parts, by the name of the key
	for name, err := range l.scope.Values(ctx, partPrefix) {
		if err != nil {
			return err
		}
		key, attempt, ok := ofPart(name)
		if !ok {
			continue
		}
		if live[key] == attempt {
			continue
		}
		// The record is read after the name of the part was. A store lists page by page, so an earlier look
		// at the record may be from before the claim that wrote the part.
		is, _, err := l.load(ctx, l.scope.Value(keyPrefix+key))
		if err != nil && !unreadable(err) {
			return err
		}
		if err != nil || is != nil && is.Attempt == attempt {
			live[key] = attempt
			continue
		}
		if err := remove(ctx, l.scope.Value(name)); err != nil {
			return err
		}
	}
	return nil
}
