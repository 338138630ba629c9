//go:build unix

package sqliteengine

import (
	"io/fs"
	"os"
	"syscall"
)

// links is how many names a file has, which are hard links of one another.
func links(is fs.FileInfo) uint64 { return uint64(is.Sys().(*syscall.Stat_t).Nlink) }

// give gives a companion of the database to the group of the database and, as only root may, to its owner.
func (d dialect) give(chown func(uid, gid int) error) {
	if is, err := os.Stat(d.path); err == nil {
		owner, uid := is.Sys().(*syscall.Stat_t), -1
		if os.Geteuid() == 0 {
			uid = int(owner.Uid)
		}
		chown(uid, int(owner.Gid)) //nolint:errcheck // the companion may be of another user, and has been given
	}
}
