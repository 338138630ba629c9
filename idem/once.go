package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
)

// Once checks a global id: it reports true to exactly one of all calls with this key, on every machine,
// until the key expires. Once is one write that the store arbitrates, and needs no lock.
//
// The effect after Once happens at most once. A caller that dies before the effect, or in the middle
// of it, leaves the key used. Nobody goes on, and no later call sees the difference. So Once is
// for effects that may be missed and must not be repeated, such as a message to a person. For all
// others there are [Leases.Begin] and the transaction mode.
//
// Once fails with [ErrReused] if the key was used with another fingerprint. Once fails with
// [pawl.ErrUnavailable] if the store did not answer for a TTL. The key may be used then, and the effect
// must not follow. A call after that returns false if so. A key of Begin and a key of Once are one key:
// Once fails with [ErrInFlight] on a key that Begin has claimed. When that claim has expired, Once asks for the lock of the
// key, and fails only while a caller has the lock. While the store grants nothing, Once fails there with [pawl.ErrGrace].
//
// An operator gives a used key back by [Leases.Forget].
func Once(ctx context.Context, l *Leases, key Key, print Fingerprint) (first bool, err error) {
	me, err := l.claimant(key, print, 0)
	if err == nil {
		me.now = time.Now()
		err = l.use(ctx, me)
	}
	switch {
	case errors.Is(err, errRepeat):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("once %q: %w", key, err)
	}
	return true, nil
}

// use writes that the key is used. A claim that has expired may be of a worker that works on, which only the lock of the key tells.
func (l *Leases) use(ctx context.Context, me claimant) error {
	expired := false
	rule := func(is *record) (*record, error) {
		claimed := is != nil && is.State == Claimed
		expired = claimed && is.expired(me.now)
		if claimed && (!expired || is.Token >= me.token) {
			return nil, ErrInFlight
		}
		return me.claim(is, Used)
	}
	_, err := write(ctx, l.value(me.key), pawl.Snapshot{}, rule)
	if !expired {
		return err
	}
	lease, err := l.lock(ctx, me.key, &BeginOptions{NoWait: true})
	if err != nil {
		return err
	}
	defer lease.Unlock(ctx) //nolint:errcheck // versions guard the record
	me.token = lease.Token()
	_, err = write(ctx, l.value(me.key), pawl.Snapshot{}, rule)
	return err
}
