//go:build unix

package sqliteengine

import (
	"io/fs"
	"syscall"
)

// links is how many names a file has, which are hard links of one another.
func links(is fs.FileInfo) uint64 { return uint64(is.Sys().(*syscall.Stat_t).Nlink) }
