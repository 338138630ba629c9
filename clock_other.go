//go:build !linux

package pawl

import "time"

// bootTime is 0 where the system has no clock that counts sleep, or Go's
// monotonic clock counts it already.
func bootTime() time.Duration { return 0 }
