//go:build unix

package main

import (
	"os"
	"syscall"
)

// freeze stops every thread of a process, wherever it is.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// thaw lets it go on as if nothing had been.
func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
