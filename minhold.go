package pawl

import (
	"context"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// A minimum hold is a second claim of the holder's owner, which shares its grant. That claim
// belongs to a session of its own, which lives for the minimum hold and is never
// renewed: so the claim ends at its time, whatever becomes of the client. Nobody believes in
// that session, so a restart grace does not cover it and is not extended by it.

const maxMinHold = 7 * 24 * time.Hour

// checkMinHold looks whether the store can keep a name for so long. The parameter what is the
// name of the option or argument.
func (c *Client) checkMinHold(what string, hold time.Duration) error {
	for _, f := range []engine.Feature{engine.FeatureMinHold, engine.FeatureDelay} {
		if err := c.caps.RefuseFeature(f); err != nil {
			return err
		}
	}
	if least := max(minTTL, c.caps.MinTTL); hold < least || hold > maxMinHold {
		return invalid("%s is %v: 0 (none) or %v to %v are allowed on %s", what, hold, least, maxMinHold, c.caps.Name)
	}
	return nil
}

// keepTaken keeps the name of a new grant taken for the minimum hold.
func (l *lock) keepTaken(ctx context.Context, claim *engine.Claim, grant engine.Grant) error {
	c := l.client
	ctx, cancel := c.bounded(ctx, c.opts.RequestTimeout)
	defer cancel()
	s, err := c.engine.Open(ctx, engine.SessionOptions{TTL: l.opts.MinHold, Delay: l.opts.MinHold, Label: l.label()})
	if err != nil {
		return fmt.Errorf("minimum hold: %w", unavailable(ctx, "open session", err))
	}
	stays := *claim
	stays.ID = s.ID() + keptSuffix
	is, err := s.Enter(ctx, &stays, false)
	err = unavailable(ctx, "enter", err)
	if err == nil && is.Token != grant.Token || refused(err) {
		err = fmt.Errorf("%w: another holds it already", errSession)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTime)
		defer cancel()
		s.Close(ctx) //nolint:errcheck // it ends by itself
		return fmt.Errorf("minimum hold: %w", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	s.Close(ended) //nolint:errcheck // only the local part is freed
	return nil
}
