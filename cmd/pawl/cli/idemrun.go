//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

const idemRunHelp = `Run CMD once for KEY. The exit code and output are kept in the store. A repeat prints the
kept output, exits with the kept code and does not run CMD. While CMD runs elsewhere, pawl
waits for that result. With --try pawl does not wait, and exits with 75.

Output is passed on while CMD runs, and both streams are kept in the order in which pawl
read them. At most --max-output KiB are kept: the beginning, and a repeat says on standard
error that the rest is missing. Kept output is plain text in the store, and operators of
the store can read it. CMD writes into pipes, also on a terminal. Output that comes after
the end of CMD, from processes that it left behind, is neither passed on nor kept. When the
reader of the output has gone, CMD works on, and its output is kept.

Only the exit codes of --keep-codes are kept, by default 0: a CMD that fails runs again at
the next call. With --keep-codes 0-255 failures are kept too. The key is refused (64) for a
CMD with other arguments, of which the store keeps a hash. A key is kept for --expiry, by
the clocks of the machines. A call after that time runs CMD again.

A CMD has come to no end when pawl or its machine died, when the key was lost, or when a
signal ended CMD. The same holds when pawl passed INT, TERM, HUP or QUIT on to CMD, whatever
its exit code. Nothing is kept then, and nobody knows how far CMD came. The next call runs
CMD again: at least once. With --on-crash refuse the next call exits with 76 instead, and
runs nothing. Look at the effects of CMD, and give the key back by "pawl idem forget KEY".
That holds for --expiry from the last call that claimed KEY. A later call runs CMD, with
PAWL_ATTEMPT 1. Choose --expiry longer than CMD runs and than an operator takes.
A store that lost its last writes forgets keys too, and CMD runs again.

CMD is run, stopped and passed signals as by "pawl run": CMD does not outlive its lease of
the key. CMD finds the variables of "pawl run" in its environment, with KEY as PAWL_NAME, and

  PAWL_ATTEMPT  how often the key was claimed: more than 1 says that CMD may have begun before

An outside effect is applied once only if the other side records the key. Every store has
keys but Redlock and row mode: 64.

Exit codes, when not the code of CMD:
   64  wrong usage, KEY was used for another CMD, or the store keeps no values
   69  the store is unavailable or refuses the password: CMD has not run
   70  internal error
   74  the key was lost, and CMD stopped or was not started; or another caller has the key
   75  CMD runs elsewhere, or the store may have forgotten callers, with --try or
       after --wait; or an operator evicted the waiter; -E sets another code
   76  an earlier CMD came to no end, with --on-crash refuse
  126  CMD cannot be executed
  127  CMD is not found
  128+n  CMD was ended by signal n, or pawl while it waited

If the store does not answer after CMD has ended, pawl says so and exits with the code of
CMD. A repeat may then run CMD again.`

// keyOptions are the options that idem run has beside those of run.
type keyOptions struct {
	key     idem.Key
	expiry  time.Duration
	keep    string
	codes   codes
	onCrash string
	most    int // KiB
}

const (
	rerun  = "rerun"
	refuse = "refuse"
)

const (
	defaultOutput = 768 // KiB
	mostOutput    = idem.MaxResult>>10 - 1
)

func newIdemRun(s *store, scope *string) *cobra.Command {
	o := &runOptions{store: s, keyed: &keyOptions{}}
	cmd := &cobra.Command{
		Use:     "run [flags] KEY -- CMD [ARG...]",
		Short:   "Run a command once for a key",
		Long:    idemRunHelp,
		Example: "  pawl idem run invoices-2026-11 -- ./invoices.sh 2026-11\n  pawl idem run --on-crash refuse --keep-codes 0,3 pay-4711 -- ./pay 4711",

		DisableFlagsInUseLine: true,
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			o.keyed.key.Scope = *scope
			if err := o.completeOnce(cmd, args); err != nil {
				return err
			}
			return o.run(cmd.Context())
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after KEY belong to CMD
	o.waitFlags(cmd)
	o.commonFlags(cmd)
	f.DurationVar(&o.keyed.expiry, "expiry", idem.DefaultExpiry, "how long the key is kept")
	f.StringVar(&o.keyed.keep, "keep-codes", "0", "the exit codes that are kept, such as 0,3,64-78")
	f.StringVar(&o.keyed.onCrash, "on-crash", rerun, "after a CMD that came to no end: rerun or refuse")
	f.IntVar(&o.keyed.most, "max-output", defaultOutput, "how much output is kept, in KiB")
	return cmd
}

// completeOnce checks the options without a store.
func (o *runOptions) completeOnce(cmd *cobra.Command, args []string) (err error) {
	if err := o.split(cmd, args); err != nil {
		return err
	}
	keyed := o.keyed
	keyed.key.ID = o.name
	if err := keyed.key.Validate(); err != nil {
		return err
	}
	if keyed.codes, err = parseCodes(keyed.keep); err != nil {
		return err
	}
	switch {
	case keyed.expiry < idem.MinExpiry || keyed.expiry > idem.MaxExpiry:
		return usageError("--expiry is %v: %v to %v are allowed", keyed.expiry, idem.MinExpiry, idem.MaxExpiry)
	case keyed.onCrash != rerun && keyed.onCrash != refuse:
		return usageError("--on-crash is %q: %s and %s are allowed", keyed.onCrash, rerun, refuse)
	case keyed.most < 0 || keyed.most > mostOutput:
		return usageError("--max-output is %d: 0 to %d are allowed", keyed.most, mostOutput)
	}
	if err := o.completeWait(cmd); err != nil {
		return err
	}
	return o.completeCommon(cmd)
}

// claimKey claims the key, or gets the kept result.
func (q *acquisition) claimKey(ctx context.Context, c *pawl.Client) (lease *pawl.Lease, err error) {
	var words [][]byte
	for _, word := range q.command {
		words = append(words, []byte(word))
	}
	q.claim, err = idem.NewLeases(c, nil).Begin(ctx, q.keyed.key, idem.FingerprintOf(words...),
		&idem.BeginOptions{NoWait: q.try, Expiry: q.keyed.expiry})
	if err != nil {
		return nil, err
	}
	return q.claim.Lease(), nil
}

// runOnce runs the command, or repeats its kept result. Missing is why the command cannot be run.
func (j *job) runOnce(path string, missing error) error {
	if kept, is := j.claim.Kept(); is {
		return j.repeat(kept)
	}
	if attempts := j.claim.Attempts(); j.keyed.onCrash == refuse && attempts > 1 {
		return errors.Join(j.release(), &exitError{exitUnfinished, fmt.Errorf(
			"%q: an earlier run came to no end: look at its effects, and then say: %s", j.name, j.forgetKey())})
	}
	if missing != nil {
		return errors.Join(j.release(), notRunnable(j.command[0], missing))
	}
	c, err := startCapture(j.keyed.most << 10)
	if err != nil {
		return errors.Join(err, j.release())
	}
	j.stdout, j.stderr = c.pipes[0].in, c.pipes[1].in
	code, err := j.execute(path)
	if err != nil {
		return errors.Join(err, j.release())
	}
	c.outcome.code = code
	err = j.settle(c)
	if err == nil && code != 0 {
		err = &exitError{code, nil}
	}
	return err
}

// settle passes the rest of the output on. settle keeps the outcome if the command came to an end and has
// a code to be kept. A command without an end leaves its key claimed: the end of the session frees it.
func (j *job) settle(c *capture) error {
	ctx, stop := j.interruptible(context.Background())
	defer stop()
	if j.lost != nil {
		limited, cancel := context.WithTimeout(ctx, closeWithin)
		defer cancel()
		c.finish(limited) //nolint:errcheck // the lost key has been told
		return nil
	}
	interrupted := c.finish(ctx)
	switch {
	case interrupted != nil || !j.exited || j.ended:
		return bySignal(ctx, nil)
	case !j.keyed.codes[c.outcome.code]:
		return j.release()
	}
	err := j.claim.Complete(ctx, c.outcome.encode())
	if errors.Is(err, idem.ErrTakenOver) {
		return err
	}
	if err != nil {
		complain(fmt.Errorf("%s has ended, and nobody knows whether its result is kept: a repeat may run it again: %w", j.command[0], err))
	}
	return nil
}

// repeat prints the kept output.
func (j *job) repeat(kept []byte) error {
	o, err := decodeOutcome(kept)
	if err != nil {
		return fmt.Errorf("%q: %w", j.name, err)
	}
	ctx, stop := j.interruptible(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- o.print(os.Stdout, os.Stderr) }()
	select {
	case err = <-done:
	case <-ctx.Done(): // nobody reads
		return bySignal(ctx, ctx.Err())
	}
	switch {
	case err != nil:
		return fmt.Errorf("print the kept output: %w", err)
	case o.cut:
		complain(o.cutText(j.name))
	}
	if o.code != 0 {
		return &exitError{o.code, nil}
	}
	return nil
}

// forgetKey is the command that gives the key back, as a shell reads it.
func (j *job) forgetKey() string {
	command := "pawl idem forget "
	if j.keyed.key.Scope != defaultScope {
		command += "--scope=" + shellWord(j.keyed.key.Scope) + " "
	}
	if strings.HasPrefix(j.name, "-") {
		command += "-- "
	}
	return command + shellWord(j.name)
}

// shellWord returns a word that a shell reads as this text.
func shellWord(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@%+,"
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
