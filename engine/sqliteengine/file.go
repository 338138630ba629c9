package sqliteengine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/pawl-go/pawl/engine"
)

// networkFS are the file systems of other machines, by their number in
// statfs(2). FUSE is not among them: it is local as often as not.
var networkFS = map[uint32]string{
	0x6969: "NFS", 0x517B: "SMB", 0xFF534D42: "CIFS", 0xFE534D42: "SMB2", 0x01021997: "9P",
	0x5346414F: "AFS", 0x6B414653: "AFS", 0x73757245: "Coda", 0x564C: "NCP", 0x00C36400: "Ceph",
	0x0BD00BD0: "Lustre", 0x7461636F: "OCFS2", 0x01161970: "GFS2", 0x47504653: "GPFS", 0x19830326: "BeeGFS",
}

// prepare creates the file, private, and returns its one true path. prepare creates
// nothing on a network file system.
func prepare(path string, fileSystem func(string) (uint32, error)) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", engine.Unavailable("open", err)
	}
	existing := path
	number, err := fileSystem(existing)
	for errors.Is(err, fs.ErrNotExist) && existing != filepath.Dir(existing) {
		existing = filepath.Dir(existing)
		number, err = fileSystem(existing)
	}
	if name := networkFS[number]; err == nil && name != "" {
		return "", fmt.Errorf("open: %w: %s is on a network file system (%s)", engine.ErrUnsupported, existing, name)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = create(path)
	}
	if err == nil { // a process with another name of the file must find the same inboxes
		path, err = filepath.EvalSymlinks(path)
	}
	if err == nil {
		if err = oneName(path); errors.Is(err, engine.ErrUnsupported) {
			return "", fmt.Errorf("open: %w", err)
		}
	}
	return path, engine.Unavailable("open", err)
}

// oneName refuses a file that others reach by another name. SQLite keeps its log beside the name, so
// two clients would both hold.
func oneName(path string) error {
	is, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case links(is) > 1:
		return fmt.Errorf("%w: %s has %d names (hard links), and each name would be a store of its own: remove the others", engine.ErrUnsupported, path, links(is))
	case mounted(path):
		return fmt.Errorf("%w: %s is mounted alone, and outside of that mount it would be another store: mount its folder", engine.ErrUnsupported, path)
	}
	return nil
}

// create makes an empty file for its owner only, or leaves an existing one.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// flushFolder writes the names in a folder to the disk. Windows does so with each file.
func flushFolder(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// mode is that of the file: its companions have the same mode, so that a user of the
// file may use all.
func (d dialect) mode() (fs.FileMode, error) {
	is, err := os.Stat(d.path)
	if err != nil {
		return 0, err
	}
	return is.Mode().Perm(), nil
}

// index makes the index of the write-ahead log, with that mode from the start. SQLite would create it for one
// user to write, and another user may open it before share. The index appears at once.
func (d dialect) index(mode fs.FileMode) {
	if _, err := os.Lstat(d.path + "-shm"); err == nil {
		return
	}
	header := make([]byte, 19)
	if f, err := os.Open(d.path); err == nil {
		io.ReadFull(f, header) //nolint:errcheck // a new file that pawl made is private
		f.Close()
	}
	if header[18] != 2 { // which says that the file has a log
		return
	}
	if f, err := os.CreateTemp(filepath.Dir(d.path), filepath.Base(d.path)+"-shm"); err == nil {
		f.Chmod(mode) //nolint:errcheck // see share, also of the rest
		d.give(f.Chown)
		f.Close()
		os.Link(f.Name(), d.path+"-shm") //nolint:errcheck // another process may have made it
		os.Remove(f.Name())              //nolint:errcheck // the file is its own
	}
}

// only lets a file pass that was just opened. A file of another type, or with a second name, is closed, and only returns
// nil, which no method of a file minds. Another user of the database may have put there what belongs to the caller.
func only(kind fs.FileMode) func(*os.File, error) *os.File {
	return func(file *os.File, _ error) *os.File {
		if is, err := file.Stat(); err == nil && is.Mode().Type() == kind && links(is) == 1 {
			return file
		}
		file.Close()
		return nil
	}
}
