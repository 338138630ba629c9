//go:build !linux

package testservers

import (
	"os/exec"
	"syscall"
	"time"
)

// Without a parent-death signal a server outlives tests that are killed.
func sysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func spawn(cmd *exec.Cmd) error { return cmd.Start() }

// family knows no children: they have to notice the end by themselves.
func family(pid int) []int { return []int{pid} }

func bury([]int) {}

// CPU is unknown here.
func (s *Server) CPU() time.Duration { return 0 }

// awaitPaused takes the pause for done when the signal was sent.
func (s *Server) awaitPaused(int) {}
