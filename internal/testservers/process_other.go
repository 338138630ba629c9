//go:build !linux

package testservers

import (
	"os/exec"
	"syscall"
)

// Without a parent-death signal a server outlives tests that are killed.
func sysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func spawn(cmd *exec.Cmd) error { return cmd.Start() }

// awaitPaused takes the signal's word for it.
func (s *Server) awaitPaused() {}
