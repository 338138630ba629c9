//go:build unix

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/idem"
)

const runHelp = `Wait for the lock NAME, run CMD under the lock, release the lock and pass on the exit
code of CMD. The same NAME with --shared is the reading side of the lock, and with -n
a semaphore. First come, first served.

CMD runs without a shell, in a process group of its own, with the standard input,
output and error of pawl. The environment of CMD also has

  PAWL_NAME   the name of the lock
  PAWL_TOKEN  the fencing token: each later holder has a larger token, so the
              resource that CMD works on can refuse a smaller one
  PAWL_OWNER  the owner, as "pawl show" prints it

Pawl passes INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT on to the group of
CMD. Before CMD runs, the first four end the waiting.

Names that begin with pawl: belong to pawl itself and are refused.

CMD does not outlive the lock. When the lock cannot be kept, the group gets SIGTERM,
--grace before the end of the lock, and SIGKILL just before that end. This holds also
when pawl is killed or stopped for long: a second small process watches pawl.

Three cases differ: an operator breaks the lock, the store loses the lock unnoticed, or
row mode loses a connection. Then the group gets SIGTERM when pawl learns of that, and
SIGKILL after --grace. Until then CMD may work beside the next holder.

Pawl cannot stop processes that leave the group of CMD, unless it is CMD itself. Nor can
pawl stop a CMD that becomes another user, as by sudo: pawl then says so. When CMD ends by
itself, pawl leaves the processes that CMD started alone: wait for them in CMD. A command
that is suspended from the terminal (Ctrl-Z) loses the lock, and its life, after the TTL.

With --hold-for 10m NAME stays taken for 10 minutes from the start of CMD on, also
when CMD ends before or pawl is killed. With --try, a job that several machines
start runs once in that time. A CMD that fails counts. "pawl break NAME --yes" frees NAME.
A store that forgets its locks forgets this time, too, as a Redis without persistence
does in a restart: then the job may run twice. NATS, Redlock and row mode refuse
--hold-for: 64. So does ZooKeeper for more than its maxSessionTimeout, by default 40s.

Exit codes, when not the code of CMD:
   64  wrong usage, or NAME is in use as something else (a semaphore, a size)
   69  the store is unavailable or refuses the password
   70  internal error
   74  the lock was lost, and CMD stopped or was not started
   75  not acquired: held by others, or the store may have forgotten locks, with
       --try or after --wait; or an operator evicted the waiter; -E sets another code
  126  CMD cannot be executed
  127  CMD is not found
  128+n  CMD was ended by signal n, or pawl while it waited (130: INT, 143: TERM)`

// runOptions are the user's options of run.
type runOptions struct {
	store              *store
	wait, ttl, grace   time.Duration
	holdFor            time.Duration
	try, shared, barge bool
	permits            int
	limited            bool // the user gave permits
	slots              bool // the permits have numbers
	preferred          bool // the user gave prefer
	prefer             int
	conflict           int // exit code
	name, label        string
	keyed              *keyOptions // of the verb idem run
	command            []string
}

const defaultGrace = 5 * time.Second // or a third of the TTL

func newRun(s *store) *cobra.Command {
	o := &runOptions{store: s}
	cmd := &cobra.Command{
		Use:     "run [flags] NAME -- CMD [ARG...]",
		Short:   "Run a command under a lock",
		Long:    runHelp,
		Example: "  pawl run nightly-report -- ./report.sh\n  pawl run --try --store redis://cache:6379 reindex -- make reindex",

		DisableFlagsInUseLine: true,
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd, args); err != nil {
				return err
			}
			return o.run(cmd.Context())
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after NAME belong to CMD
	o.waitFlags(cmd)
	f.BoolVar(&o.shared, "shared", false, "share the lock with all others that say --shared")
	f.IntVarP(&o.permits, "permits", "n", 0, "let this many run at once; all users of NAME must say the same number, which \"pawl resize\" overrides")
	o.commonFlags(cmd)
	f.DurationVar(&o.holdFor, "hold-for", 0, "keep NAME taken for this time from the start of CMD on, also when CMD ends before, such as 10m")
	f.BoolVar(&o.barge, "barge", false, "let a newcomer take the free lock before the waiters; all users of NAME must say --barge")
	return cmd
}

// complete checks the options without a store.
func (o *runOptions) complete(cmd *cobra.Command, args []string) error {
	if err := o.split(cmd, args); err != nil {
		return err
	}
	set := cmd.Flags().Changed
	o.limited = set("permits")
	switch {
	case o.limited && o.shared:
		return usageError("-n and --shared exclude each other")
	case set("hold-for") && (o.holdFor < leastHoldFor || o.holdFor > mostHoldFor):
		return usageError("--hold-for is %v: %v to %v are allowed", o.holdFor, leastHoldFor, mostHoldFor)
	case strings.HasPrefix(o.name, ownNames):
		return usageError("the name %q is pawl's own: names that begin with %s are for its primitives", o.name, ownNames)
	case o.limited && (o.permits < 1 || o.permits > pawl.MaxPermits):
		return usageError("-n is %d: 1 to %d are allowed", o.permits, pawl.MaxPermits)
	}
	if err := o.completeWait(cmd); err != nil {
		return err
	}
	return o.completeCommon(cmd)
}

// The range of --hold-for. Some stores have a longer least time.
const (
	leastHoldFor = 100 * time.Millisecond
	mostHoldFor  = 7 * 24 * time.Hour
)

// checkHoldFor refuses a --hold-for that the store cannot keep, before pawl asks for the lock.
func (o *runOptions) checkHoldFor(caps engine.Caps) error {
	if o.holdFor == 0 {
		return nil
	}
	for _, f := range []engine.Feature{engine.FeatureMinHold, engine.FeatureDelay} {
		if err := caps.RefuseFeature(f); err != nil {
			return fmt.Errorf("--hold-for: %w", err)
		}
	}
	if least := max(leastHoldFor, caps.MinTTL); o.holdFor < least {
		return usageError("--hold-for is %v: %v to %v are allowed on %s", o.holdFor, least, mostHoldFor, caps.Name)
	}
	return nil
}

// completeWait checks the flags of waitFlags.
func (o *runOptions) completeWait(cmd *cobra.Command) error {
	waits := cmd.Flags().Changed("wait")
	switch {
	case o.try && waits:
		return usageError("--try and --wait exclude each other")
	case waits && o.wait <= 0:
		return usageError("--wait is %v: more than 0 is allowed; --try does not wait", o.wait)
	case o.conflict < 0 || o.conflict > 255:
		return usageError("-E is %d: 0 to 255 are allowed", o.conflict)
	}
	return nil
}

// split finds the name and the command in the arguments.
func (o *runOptions) split(cmd *cobra.Command, args []string) error {
	form := "the form is: " + cmd.UseLine()
	switch {
	case len(args) == 0 || cmd.ArgsLenAtDash() == 0 && (len(args) < 2 || args[1] != "--"):
		return usageError("the name is missing: %s", form)
	case len(args) > 1 && args[1] != "--" && strings.HasPrefix(args[1], "-"):
		flag, _, _ := strings.Cut(args[1], "=") // whose value may have a password
		return usageError("flag %s stands after the name: flags go before it: %s", flag, form)
	case len(args) < 2 || args[1] != "--":
		return usageError("-- is missing between the name and the command: %s", form)
	case len(args) < 3:
		return usageError("the command is missing: %s", form)
	}
	o.name, o.command = args[0], args[2:]
	return pawl.CheckName(o.name)
}

// completeCommon checks --ttl, --grace and --label.
func (o *runOptions) completeCommon(cmd *cobra.Command) error {
	switch {
	case o.ttl <= 0:
		return usageError("--ttl is %v: more than 0 is allowed", o.ttl)
	case !cmd.Flags().Changed("grace"):
		o.grace = min(defaultGrace, o.ttl/3)
	case o.grace < 0 || o.grace > o.ttl/2:
		return usageError("--grace is %v: 0 to half of --ttl (%v) are allowed", o.grace, o.ttl/2)
	}
	if o.label != printable(o.label) {
		return usageError("--label %q has characters that cannot be printed", o.label)
	}
	o.label = label(cmp.Or(o.label, filepath.Base(o.command[0])))
	return nil
}

// waitFlags are the flags of the verbs that may give up.
func (o *runOptions) waitFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&o.wait, "wait", 0, "how long to wait for the lock, such as 30s (default: as long as it takes)")
	f.BoolVar(&o.try, "try", false, "do not wait")
	f.IntVarP(&o.conflict, "conflict-exit-code", "E", exitNotAcquired, "exit code when the lock is not acquired")
}

// commonFlags are the flags of all verbs that run a command.
func (o *runOptions) commonFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&o.ttl, "ttl", defaultTTL, "how long the store keeps the lock of a machine that died")
	f.DurationVar(&o.grace, "grace", 0, "from SIGTERM to SIGKILL when the lock is lost, at most half of --ttl (default: 5s or a third of --ttl)")
	f.StringVar(&o.label, "label", "", "the purpose, shown after host and process id (default: CMD)")
}

// held is the name of the lock in the store.
func (o *runOptions) held() string {
	switch {
	case o.slots:
		return slotNames + o.name
	case o.keyed != nil:
		return idemNames + o.keyed.key.Name()
	}
	return o.name
}

// run runs the command under the lock. The guard starts first, because its start takes as long as
// the store's answer.
func (o *runOptions) run(ctx context.Context) (err error) {
	path, missing := lookPath(o.command[0])
	if missing != nil && o.keyed == nil { // a repeat of a key runs no command
		return notRunnable(o.command[0], missing)
	}
	j := &job{runOptions: o, signals: catchSignals()}
	if j.guard, err = startGuard(); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	defer j.guard.end()
	held, err := j.acquire(ctx)
	defer held.leave(closeWithin)
	if err != nil {
		return err
	}
	j.lease = held.lease
	if j.keyed != nil {
		return j.runOnce(path, missing)
	}
	code, err := j.execute(path)
	if lost := j.release(); lost != nil && err == nil {
		return lost
	}
	if err == nil && code != 0 {
		err = &exitError{code, nil}
	}
	return err
}

func lookPath(file string) (string, error) {
	path, err := exec.LookPath(file)
	if errors.Is(err, exec.ErrDot) { // pawl searches the user's PATH as it is
		err = nil
	}
	return path, err
}

func notRunnable(command string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		code = exitNotFound
	}
	if inner := errors.Unwrap(err); inner != nil { // the outer error names pawl's own action
		err = inner
	}
	return &exitError{code, fmt.Errorf("run %q: %w", command, err)}
}

// job is one run of a command.
type job struct {
	*runOptions
	signals chan os.Signal
	guard   *guard
	lease   *pawl.Lease
	number  int         // of the slot
	claim   *idem.Claim // of the key of idem run
	child   *child
	tty     *terminal

	stdout, stderr *os.File // of the child; nil: those of pawl

	exited  bool      // the child ended by itself
	ended   bool      // pawl passed a signal that ends pawl on to the child
	lost    error     // why pawl told the child to end
	refused bool      // the child took no signal, and pawl has said so
	killAt  time.Time // when pawl kills the child that it told to end
}

// giveBack gives back the lock, or the key without a result.
func (j *job) giveBack(ctx context.Context, lease *pawl.Lease) error {
	if j.claim != nil {
		return j.claim.Abort(ctx)
	}
	return lease.Unlock(ctx)
}

// release gives the lock back. release returns an error only if the lock was lost before. If the store
// does not answer, the end of the session frees the lock.
func (j *job) release() error {
	ctx, stop := j.interruptible(context.Background())
	defer stop()
	err := j.giveBack(ctx, j.lease)
	switch {
	case err == nil || j.lost != nil:
		return nil
	case errors.Is(err, pawl.ErrLost), errors.Is(err, idem.ErrTakenOver):
		return fmt.Errorf("%w; %s did not have the lock to its end", err, j.command[0])
	}
	complain(fmt.Errorf("release: %w: the lock stays taken for up to %v", err, j.ttl))
	return nil
}
