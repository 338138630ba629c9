//go:build unix

package sqliteengine

import (
	"io/fs"
	"os"
	"syscall"
)

// links is how many names a file has, which are hard links of one another.
func links(is fs.FileInfo) uint64 { return uint64(is.Sys().(*syscall.Stat_t).Nlink) }

// share gives the mode of the file to the index of the write-ahead log, which SQLite creates
// for all to read. The log itself has it already. That index belongs to the owner of the file, too, also
// where root opens the file first.
func (d dialect) share() error {
	index := only(0)(os.OpenFile(d.path+"-shm", os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0))
	defer index.Close()
	d.give(index.Chown)
	is, err := index.Stat()
	if err != nil { // a copy that is only read may have none, and SQLite refuses a symbolic link
		return nil
	}
	want, err := d.mode()
	if err != nil || is.Mode().Perm() == want {
		return err
	}
	return index.Chmod(want)
}

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
