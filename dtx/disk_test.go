package dtx_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
)

// brokenDisk is a disk that fails to flush while broken is true.
type brokenDisk struct {
	vfs.VFSFilename
	broken *atomic.Bool
}

func (d brokenDisk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	file, flags, err := d.VFSFilename.OpenFilename(name, flags)
	return brokenFile{file, d.broken}, flags, err
}

type brokenFile struct {
	vfs.File
	broken *atomic.Bool
}

func (f brokenFile) Sync(flags vfs.SyncFlag) error {
	if f.broken.Load() {
		return sqlite3.IOERR_FSYNC
	}
	return f.File.Sync(flags)
}

// TestBrokenDisk: after a COMMIT that the disk has failed, no caller knows what the disk has. So the transaction is in doubt, and not aborted.
func TestBrokenDisk(t *testing.T) {
	t.Parallel()
	disk := brokenDisk{vfs.Find("os").(vfs.VFSFilename), new(atomic.Bool)}
	vfs.Register("broken", disk)
	t.Cleanup(func() { vfs.Unregister("broken") })
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "log.db"))+"?vfs=broken&_pragma=busy_timeout(20000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	log, err := dtx.NewLog(dialect.SQLite, db, nil)
	if err == nil {
		err = log.Migrate(t.Context())
	}
	if err == nil {
		_, err = db.ExecContext(t.Context(), "CREATE TABLE things (n)")
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := dtx.New(t.Context(), log, []*dtx.Resource{log.Resource("local")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error {
		_, err := tx.On(log.Resource("local")).ExecContext(ctx, "INSERT INTO things VALUES (1)")
		disk.broken.Store(true)
		return err
	})
	if !errors.Is(err, dtx.ErrInDoubt) || !dialect.Full(err) {
		t.Error(err)
	}
	disk.broken.Store(false)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
