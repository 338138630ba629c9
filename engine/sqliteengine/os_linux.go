package sqliteengine

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pawl-go/pawl/engine"
)

const expiry = engine.ExpiryMonotonic

// now is the time since boot in µs, sleep included. All processes of the
// machine share it and nobody sets it.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("clock_gettime: %v", err)) // since Linux 2.6.39 there is no way to fail
	}
	return ts.Nano()/1000 - clockShift()
}

// clockShift is how much later it is in the time namespace of this process than on the machine, in
// µs. A container may have such a namespace. The difference never changes.
var clockShift = sync.OnceValue(func() int64 {
	offsets, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // the kernel has no such namespaces
	}
	return bootShift(string(offsets))
})

func bootShift(offsets string) int64 {
	for line := range strings.Lines(offsets) {
		var seconds, nanos int64
		if n, _ := fmt.Sscanf(line, "boottime %d %d", &seconds, &nanos); n == 2 {
			return seconds*1_000_000 + nanos/1000
		}
	}
	return 0
}

func fileSystem(path string) (uint32, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return uint32(st.Type), nil
}

// mounted reports whether a file is a mount point, as a single file that is bound into a container. A
// kernel before 5.8 does not tell.
func mounted(path string) bool {
	var is unix.Statx_t
	return unix.Statx(unix.AT_FDCWD, path, 0, 0, &is) == nil && is.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
