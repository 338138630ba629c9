//go:build !linux

package sqliteengine

import (
	"time"

	"github.com/pawl-go/pawl/engine"
)

const expiry = engine.ExpiryWall

// now is the time of day in µs: no other clock is the same for all processes
// and counts sleep on every system.
func now() int64 { return time.Now().UnixMicro() }

// fileSystem is not known: a network file system is not refused.
func fileSystem(string) (uint32, error) { return 0, nil }

// mounted is not known.
func mounted(string) bool { return false }
