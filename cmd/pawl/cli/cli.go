// Package cli is the pawl command: a file for each verb.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/readable"
	"github.com/pawl-go/pawl/id/snowflake"
	"github.com/pawl-go/pawl/idem"
)

// Exit codes; those of `pawl run` are in its help. 64, 69, 70, 74 and 75 are those of sysexits.h,
// the others are those of shells.
const (
	exitUsage         = 64
	exitUnavailable   = 69
	exitInternal      = 70
	exitLost          = 74
	exitNotAcquired   = 75
	exitUnfinished    = 76 // an earlier run came to no end
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number of the signal
)

// Main runs the command of this process and returns its exit code.
func Main() int {
	if len(os.Args) == 2 && os.Args[1] == guardVerb {
		return guardMain()
	}
	defer stderr.flush(closeWithin)
	err := newRoot().ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	var exit *exitError
	if !errors.As(err, &exit) { // an error of cobra itself
		exit = &exitError{exitUsage, fmt.Errorf("%w (try: pawl help)", err)}
	}
	if exit.err != nil {
		complain(exit.err)
	}
	return exit.code
}

// exitError ends the command with a code. Without err it prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }
func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// coded gives an error of a verb its exit code.
func coded(err error) error {
	var exit *exitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	code := exitInternal
	for _, class := range []struct {
		err  error
		code int
	}{
		{pawl.ErrLost, exitLost},
		{idem.ErrTakenOver, exitLost},
		{idem.ErrReused, exitUsage},
		{pawl.ErrInvalid, exitUsage},
		{pawl.ErrMismatch, exitUsage},
		{pawl.ErrUnsupported, exitUsage},
		{open.ErrURL, exitUsage},
		{engine.ErrNoStore, exitUnavailable},
		{id.ErrExhausted, exitUnavailable},
		{snowflake.ErrLead, exitUnavailable},
		{readable.ErrDay, exitUnavailable},
		{pawl.ErrUnavailable, exitUnavailable}, // also when --wait ended during it: nobody knows whether the lock was free
		{pawl.ErrNotAcquired, exitNotAcquired},
	} {
		if errors.Is(err, class.err) {
			code = class.code
			break
		}
	}
	return &exitError{code, err}
}

// verb is the function that a cobra command runs.
func verb(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := noEmptyFlag(cmd); err != nil {
			return err
		}
		return coded(run(cmd, args))
	}
}

func newRoot() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "pawl",
		Short: "Coordination between machines: locks, IDs, messages, transactions",
		Long: `pawl runs programs under locks that machines share. The command shows, breaks and resizes locks,
runs commands once for a key, makes IDs, and shows messages that wait for a broker. Servers
join groups, and a proxy balances requests over them.

The store is a URL: --store, else the variable PAWL_STORE, else a SQLite file of
the user (pawl/pawl.db in $XDG_STATE_HOME, by default ~/.local/state):

  sqlite:PATH                                   processes of one machine
  redis://[USER:PASSWORD@]HOST[:PORT][/DB]      or rediss:// for TLS
  etcd://[USER:PASSWORD@]HOST[:PORT][,HOST...]  or etcds:// for TLS
  postgres://USER[:PASSWORD@]HOST[:PORT]/DB     or mysql://, also for MariaDB
  zk://[USER:PASSWORD@]HOST[:PORT][,HOST...]    ZooKeeper
  nats://[USER:PASSWORD@]HOST[:PORT][,HOST...]  NATS JetStream
  redis+sentinel:  redis+cluster:  redlock:     see docs/urls.md

Other users of the machine see arguments, but not variables: put a URL with a
password into PAWL_STORE.

Exit codes: 0, 64 wrong usage, 69 store unavailable, 70 internal error. The help of run,
slot, elect, join, idem run, idem forget, outbox and tx, as "pawl help run", tells their other
codes. For id there is also 128 + n: pawl was ended by signal n.`,
		Args: cobra.NoArgs,
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			if version {
				return printVersion(cmd.OutOrStdout())
			}
			return usageError("a verb is missing (try: pawl help)")
		}),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.Flags().BoolVar(&version, "version", false, "print the version of pawl")
	s := &store{}
	root.SetFlagErrorFunc(wrongFlag)
	root.PersistentFlags().StringVar(&s.url, "store", "", "URL of the store (default: $PAWL_STORE, else a SQLite file)")
	s.given = func() bool { return root.PersistentFlags().Changed("store") }
	root.AddCommand(newRun(s), newSlot(s), newElect(s), newJoin(s), newMembers(s), newProxy(s), newLs(s), newShow(s), newBreak(s), newResize(s), newID(s), newIdem(s), newOutbox(s), newTx(), newStore(s), newVersion())
	strictHelp(root)
	return root
}
