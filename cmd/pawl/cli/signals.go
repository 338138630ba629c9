//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// catchSignals catches the signals that are passed on to the command. Signals that pawl was started
// to ignore stay ignored, as nohup wants. TSTP and CONT follow when the command runs: before, pawl
// stops as any program does.
func catchSignals() chan os.Signal {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader of standard error has gone: no reason to end
	signals := make(chan os.Signal, 16)
	for _, sig := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	return signals
}

// interruptible returns a context that a signal ends. After a command has run, pawl catches TSTP, and so stops itself.
func (j *job) interruptible(ctx context.Context) (_ context.Context, stop func()) {
	return interruptible(ctx, j.signals, func(sig os.Signal) {
		if sig == syscall.SIGTSTP {
			stopUntilResumed(syscall.Getpid())
		}
	})
}

// said is err, or the error for a signal that ended ctx.
func (j *job) said(ctx context.Context, err error) error {
	if in := (interrupted{}); errors.As(context.Cause(ctx), &in) {
		return &exitError{in.code(), fmt.Errorf("%w while waiting for %q", in, j.name)}
	}
	return err
}
