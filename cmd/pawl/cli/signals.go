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

// catchSignals catches the signals that are passed on to the command. Signals that pawl was
// started to ignore stay ignored, as nohup wants it. TSTP and CONT are added
// when the command runs: before, pawl stops as any program does.
func catchSignals() chan os.Signal {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader of our standard error is gone: no reason to end
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

// ends reports whether a signal is to end pawl.
func ends(sig os.Signal) bool {
	return sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT
}

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ sig syscall.Signal }

func (i interrupted) Error() string {
	return fmt.Sprintf("ended by signal %d (%v)", i.code()-exitSignal, i.sig)
}
func (i interrupted) code() int { return exitSignal + int(i.sig) }

// interruptible returns a context that a signal ends. A second signal, while
// the store does not answer, ends the process. stop gives the signals back.
func (j *job) interruptible(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case sig := <-j.signals:
				in := interrupted{sig.(syscall.Signal)}
				if !ends(sig) {
					continue
				}
				if ctx.Err() != nil {
					os.Exit(in.code())
				}
				cancel(in)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		close(done)
		<-ended
		cancel(nil)
	}
}

// said is err, or the error for a signal that ended ctx.
func (j *job) said(ctx context.Context, err error) error {
	if in := (interrupted{}); errors.As(context.Cause(ctx), &in) {
		return &exitError{in.code(), fmt.Errorf("%w while waiting for %q", in, j.name)}
	}
	return err
}
