package pawl

import (
	"context"
	"time"
)

// SetBootTime replaces the clock that counts sleep until restore is called.
func SetBootTime(clock func() time.Duration) (restore func()) {
	before := boot
	boot = clock
	return func() { boot = before }
}

// BootTime is the clock of the system that counts sleep.
func BootTime() time.Duration { return bootTime() }

// NumbersKnown is how many numbers of permits a client remembers.
func NumbersKnown(c *Client) int {
	c.numbers.mu.Lock()
	defer c.numbers.mu.Unlock()
	return len(c.numbers.byName)
}

// ClaimsKnown is how many claims the session of a client remembers.
func ClaimsKnown(c *Client) int {
	s := c.live()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.known)
}

// Closing brings a client to the moment at which Close has ended the client, and not yet its session.
func Closing(c *Client) {
	life, end := context.WithCancelCause(context.Background())
	end(ErrClosed)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life = life
}
