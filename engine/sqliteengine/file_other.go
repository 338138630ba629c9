//go:build !unix

package sqliteengine

import "io/fs"

// links is not known: a file with two names is not refused.
func links(fs.FileInfo) uint64 { return 1 }

// share does nothing: a file has no mode there that keeps others out.
func (dialect) share() error { return nil }

func (dialect) give(func(uid, gid int) error) {}
