//go:build !linux

package pawl

import "time"

// bootTime is 0. Either the system has no clock that counts sleep, or Go's monotonic clock counts
// sleep already.
func bootTime() time.Duration { return 0 }
