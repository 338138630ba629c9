//go:build unix

package sqliteengine

import (
	"io/fs"
	"os"
	"syscall"
)

// links is how many names a file has, which are hard links of one another.
func links(is fs.FileInfo) uint64 { return uint64(is.Sys().(*syscall.Stat_t).Nlink) }

// give gives a companion of the database to the owner of the database, as only root may. A symbolic link
// is not followed, because that owner may have put the link there.
func (d dialect) give(companion string) {
	if is, err := os.Stat(d.path); err == nil && os.Geteuid() == 0 {
		owner := is.Sys().(*syscall.Stat_t)
		os.Lchown(companion, int(owner.Uid), int(owner.Gid)) //nolint:errcheck // the file system may have no owners
	}
}
