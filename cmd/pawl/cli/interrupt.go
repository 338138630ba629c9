package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// ends reports whether a signal ends pawl.
func ends(sig os.Signal) bool {
	return sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT
}

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ sig syscall.Signal }

func (i interrupted) Error() string {
	return fmt.Sprintf("ended by signal %d (%v)", i.code()-exitSignal, i.sig)
}
func (i interrupted) code() int { return exitSignal + int(i.sig) }

// interruptible returns a context that a signal ends. A second signal, while the store does not
// answer, ends the process. Signals that do not end pawl go to other. stop gives the signals back.
func interruptible(ctx context.Context, signals <-chan os.Signal, other func(os.Signal)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case sig := <-signals:
				if !ends(sig) {
					other(sig)
					continue
				}
				in := interrupted{sig.(syscall.Signal)}
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

// untilSignal returns a context that INT, TERM, HUP or QUIT ends. untilSignal is for verbs that have no
// child. If the reader of the output has gone, the write fails; no signal comes.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	signals := make(chan os.Signal, 4)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return interruptible(ctx, signals, func(os.Signal) {})
}

// bySignal is err, or the error for the signal that ended ctx.
func bySignal(ctx context.Context, err error) error {
	if in := (interrupted{}); errors.As(context.Cause(ctx), &in) {
		return &exitError{in.code(), in}
	}
	return err
}

// outputOf is the output of a verb that a signal ends, also while the reader of the output does not read.
func outputOf(ctx context.Context, cmd *cobra.Command) io.Writer {
	return verbOutput{heeding{ctx, cmd.OutOrStdout()}}
}

// resultOf is the output for the line that says what a verb has done. A signal does not keep this line back.
func resultOf(cmd *cobra.Command) io.Writer { return verbOutput{cmd.OutOrStdout()} }

// verbOutput is the output of a verb that asks a database. The work of the verb decides the exit code, also where the reader has gone.
type verbOutput struct{ to io.Writer }

func (o verbOutput) Write(p []byte) (int, error) {
	if _, err := o.to.Write(p); err != nil && !errors.Is(err, syscall.EPIPE) {
		return 0, outputError{err}
	}
	return len(p), nil
}

// outputError is an error of the output. outputError wraps nothing, because an error of the system looks like one of a connection to a
// database.
type outputError struct{ error }

// readerGone reports whether the reader of the output has gone.
func readerGone(err error) bool {
	var of outputError
	return errors.As(err, &of) && errors.Is(of.error, syscall.EPIPE)
}

// heeding is a writer whose writes end with ctx.
type heeding struct {
	ctx context.Context
	to  io.Writer
}

func (h heeding) Write(p []byte) (int, error) {
	p = bytes.Clone(p) // the write may go on when the caller has its text back
	var n int
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err = h.to.Write(p)
	}()
	select {
	case <-done:
		return n, err
	case <-h.ctx.Done():
		return 0, context.Cause(h.ctx)
	}
}
