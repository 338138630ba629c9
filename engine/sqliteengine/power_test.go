package sqliteengine

import (
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3/util/vfsutil"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/pawl-go/pawl/internal/sessiontest"
)

// disk is a file system that remembers each file as it was last synchronized, which is safe from a
// loss of power.
type disk struct {
	vfs.VFS
	mu    sync.Mutex
	safe  map[string][]byte // by the name of the file
	syncs int
}

func newDisk(t *testing.T) *disk {
	d := &disk{VFS: vfs.Find(""), safe: make(map[string][]byte)}
	vfs.Register(t.Name(), d)
	t.Cleanup(func() { vfs.Unregister(t.Name()) })
	return d
}

func (d *disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, flags, err := vfsutil.WrapOpenFilename(d.VFS, name, flags)
	if err != nil {
		return nil, flags, err
	}
	return &diskFile{f, d, name.String()}, flags, nil
}

// Delete is safe at once: the first Put flushes the folder, which file systems on the way
// here do not see.
func (d *disk) Delete(name string, syncDir bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.safe, name)
	return d.VFS.Delete(name, syncDir)
}

func (d *disk) synced() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

// lose returns the path of the store as a loss of power leaves it now.
func (d *disk) lose(t *testing.T) string {
	t.Helper()
	d.mu.Lock()
	safe := maps.Clone(d.safe)
	d.mu.Unlock()
	folder := t.TempDir()
	for name, data := range safe {
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(name)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(folder, "pawl.db")
}

// diskFile passes on what the log of SQLite needs of a file.
type diskFile struct {
	vfs.File
	disk *disk
	name string
}

func (f *diskFile) SharedMemory() vfs.SharedMemory { return vfsutil.WrapSharedMemory(f.File) }

func (f *diskFile) Sync(flags vfs.SyncFlag) error {
	if err := f.File.Sync(flags); err != nil {
		return err
	}
	data, err := os.ReadFile(f.name)
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.safe[f.name] = data
	f.disk.syncs++
	return err
}

// TestValuesSurviveAPowerLoss: a Put that has returned is on the disk, and so is a
// deletion. Locks do not wait for the disk.
func TestValuesSurviveAPowerLoss(t *testing.T) {
	d := newDisk(t)
	path := filepath.Join(t.TempDir(), "pawl.db")
	e, err := New(t.Context(), path, &Options{vfs: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	s := open(t, e, time.Hour)
	survives := func(what string, want string, version uint64) {
		t.Helper()
		v, err := newEngine(t, d.lose(t)).Get(t.Context(), "counter")
		if err != nil || v.Version != version || string(v.Data) != want {
			t.Errorf("%s: a loss of power leaves %+v, %v, want version %d", what, v, err, version)
		}
	}
	hold := func(id string) {
		t.Helper()
		before := d.synced()
		sessiontest.Hold(t, s, mutex("job", id))
		if err := s.Leave(t.Context(), "job", id); err != nil {
			t.Error(err)
		}
		if n := d.synced() - before; n > 0 {
			t.Errorf("a lock waited for the disk %d times", n)
		}
	}
	put := func(data []byte, version uint64) uint64 {
		t.Helper()
		before := d.synced()
		version, err := e.Put(t.Context(), "counter", data, version)
		if n := d.synced() - before; err != nil || n > 2 { // the log, and at its first write also its header
			t.Errorf("a value took %d syncs: %v", n, err)
		}
		return version
	}
	hold("a")
	one := put([]byte("1"), 0)
	survives("the first value", "1", one)
	hold("b")
	two := put([]byte("2"), one)
	survives("a value after locks", "2", two)
	hold("c")
	put(nil, two)
	survives("a deletion", "", 0)
	hold("d")
}
