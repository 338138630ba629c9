//go:build unix

package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// nobody is the user of the servers if this program runs as root, because PostgreSQL and MariaDB refuse root.
const nobody = 65534

// unprivileged lets a server run in its folder. Ctrl-C is for this program, which then ends its servers.
func unprivileged(cmd *exec.Cmd, dir string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() != 0 {
		return nil
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	return filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(name, nobody, nobody)
	})
}

// end lets a server shut down, and kills it if it takes too long. SIGINT does not wait for the clients of PostgreSQL.
func end(cmd *exec.Cmd, ended <-chan error) error {
	signal := syscall.SIGTERM
	if filepath.Base(cmd.Path) == "postgres" {
		signal = syscall.SIGINT
	}
	cmd.Process.Signal(signal) //nolint:errcheck // it may have ended
	select {
	case <-ended:
		return nil
	case <-time.After(10 * time.Second):
		err := cmd.Process.Kill()
		<-ended
		return err
	}
}
