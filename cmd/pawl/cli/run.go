//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

const runHelp = `Wait for the lock NAME, run CMD under it, release it and pass on the exit code
of CMD. The same NAME with --shared is the reading side of the lock, with -n a
semaphore. First come, first served.

CMD is run as it is, without a shell, in a process group of its own, with the
standard input, output and error of pawl and, in its environment,

  PAWL_NAME   the name of the lock
  PAWL_TOKEN  the fencing token: each later holder has a larger one, so what CMD
              works on can refuse a smaller one
  PAWL_OWNER  the owner, as "pawl show" prints it

INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT are passed on to the
group of CMD; before CMD runs, the first four end the waiting.

CMD does not outlive the lock. When the lock cannot be kept, the group gets
SIGTERM, --grace before the lock is over, and SIGKILL just before; when somebody
breaks the lock, SIGTERM at once and SIGKILL after --grace. This holds too when
pawl is killed or stopped for long: a second small process watches it. Other
processes than CMD that leave its group are out of reach. What CMD leaves behind
when it ends by itself is left alone: wait for it in CMD.
A command that is suspended from the terminal (Ctrl-Z) loses the lock, and its
life, after the TTL.

Exit codes, when it is not the one of CMD:
   64  wrong usage, or NAME is in use as something else (a semaphore, a size)
   69  the store is unavailable or refuses the password
   70  internal error
   74  the lock was lost and CMD stopped
   75  not acquired: held by others with --try, or after --wait
  126  CMD cannot be executed
  127  CMD is not found
  128+n  CMD was ended by signal n, or pawl while it waited (130: INT, 143: TERM)`

// runOptions is what the user asked run for.
type runOptions struct {
	store              *store
	wait, ttl, grace   time.Duration
	try, shared, barge bool
	permits            int
	limited            bool // permits was given
	name               string
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
	f.SetInterspersed(false) // what follows NAME is not ours
	f.DurationVar(&o.wait, "wait", 0, "how long to wait for the lock, such as 30s (default: as long as it takes)")
	f.BoolVar(&o.try, "try", false, "do not wait")
	f.BoolVar(&o.shared, "shared", false, "share the lock with others that do so")
	f.IntVarP(&o.permits, "permits", "n", 0, "let this many run at once; all users of NAME must say the same number, which \"pawl resize\" overrides")
	o.timeFlags(cmd)
	f.BoolVar(&o.barge, "barge", false, "let who comes first when the lock is free overtake those who wait; all users of NAME must say so")
	return cmd
}

// complete checks what was asked for as far as that needs no store.
func (o *runOptions) complete(cmd *cobra.Command, args []string) error {
	if err := o.split(cmd, args); err != nil {
		return err
	}
	set := cmd.Flags().Changed
	o.limited = set("permits")
	switch {
	case o.try && set("wait"):
		return usageError("--try and --wait exclude each other")
	case o.limited && o.shared:
		return usageError("-n and --shared exclude each other")
	case set("wait") && o.wait <= 0:
		return usageError("--wait is %v: more than 0 is allowed; --try does not wait", o.wait)
	case o.limited && (o.permits < 1 || o.permits > pawl.MaxPermits):
		return usageError("-n is %d: 1 to %d are allowed", o.permits, pawl.MaxPermits)
	}
	return o.completeTimes(cmd)
}

// split finds the name and the command in the arguments.
func (o *runOptions) split(cmd *cobra.Command, args []string) error {
	form := "the form is: pawl " + cmd.Use
	switch {
	case len(args) == 0 || cmd.ArgsLenAtDash() == 0 && (len(args) < 2 || args[1] != "--"):
		return usageError("the name is missing: %s", form)
	case len(args) > 1 && args[1] != "--" && strings.HasPrefix(args[1], "-"):
		return usageError("flag %s stands after the name: flags go before it: %s", args[1], form)
	case len(args) < 2 || args[1] != "--":
		return usageError("-- is missing between the name and the command: %s", form)
	case len(args) < 3:
		return usageError("the command is missing: %s", form)
	}
	o.name, o.command = args[0], args[2:]
	return pawl.CheckName(o.name)
}

// completeTimes checks --ttl and --grace.
func (o *runOptions) completeTimes(cmd *cobra.Command) error {
	switch {
	case o.ttl <= 0:
		return usageError("--ttl is %v: more than 0 is allowed", o.ttl)
	case !cmd.Flags().Changed("grace"):
		o.grace = min(defaultGrace, o.ttl/3)
	case o.grace < 0 || o.grace > o.ttl/2:
		return usageError("--grace is %v: 0 to half of --ttl (%v) are allowed", o.grace, o.ttl/2)
	}
	return nil
}

// timeFlags are those of what runs a command.
func (o *runOptions) timeFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&o.ttl, "ttl", defaultTTL, "how long the store keeps the lock of a machine that died")
	f.DurationVar(&o.grace, "grace", 0, "from SIGTERM to SIGKILL when the lock is lost, at most half of --ttl (default: 5s or a third of --ttl)")
}

// run does what is asked for. The guard starts first, for it takes as long to
// start as the store to answer.
func (o *runOptions) run(ctx context.Context) (err error) {
	path, err := lookPath(o.command[0])
	if err != nil {
		return notRunnable(o.command[0], err)
	}
	j := &job{runOptions: o, signals: catchSignals()}
	if j.guard, err = startGuard(); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	defer j.guard.end()
	eng, client, err := j.acquire(ctx)
	if eng != nil {
		defer leave(eng, client)
	}
	if err != nil {
		return err
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
	if errors.Is(err, exec.ErrDot) { // the user's PATH is the user's business
		err = nil
	}
	return path, err
}

func notRunnable(command string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		code = exitNotFound
	}
	if inner := errors.Unwrap(err); inner != nil { // the outer one says what we do
		err = inner
	}
	return &exitError{code, fmt.Errorf("run %q: %w", command, err)}
}

// job is a run.
type job struct {
	*runOptions
	signals chan os.Signal
	guard   *guard
	lease   *pawl.Lease
	child   *child
	tty     *terminal

	ended  bool      // a signal that ends pawl was passed on to the child
	lost   error     // why the child was told to end
	killAt time.Time // when we do, after it was told to end
}

// acquire gets the lock. A signal ends the waiting, and no claim is left.
func (j *job) acquire(ctx context.Context) (engine.Engine, *pawl.Client, error) {
	ctx, stop := j.interruptible(ctx)
	defer stop()
	eng, client, err := j.connect(ctx)
	if err != nil {
		return eng, nil, j.said(ctx, err)
	}
	show := startWaitLine(eng, j.name, label(j.command[0]))
	j.lease, err = j.lock(ctx, client)
	show.stop()
	if err == nil && ctx.Err() != nil { // the signal came as the lock did
		err = errors.Join(ctx.Err(), j.release())
	}
	return eng, client, j.said(ctx, err)
}

// connect returns what was opened also when it fails later.
func (o *runOptions) connect(ctx context.Context) (eng engine.Engine, client *pawl.Client, err error) {
	if eng, err = o.store.open(ctx); err != nil {
		return nil, nil, err
	}
	err = ask(ctx, func(ctx context.Context) (err error) {
		client, err = pawl.New(ctx, eng, &pawl.Options{TTL: o.ttl, Label: label(o.command[0])})
		if errors.Is(err, pawl.ErrInvalid) { // it names the option that --ttl is
			err = fmt.Errorf("--ttl: %w", err)
		}
		return err
	})
	return eng, client, err
}

// lock waits for the lock as long as it was asked to.
func (j *job) lock(ctx context.Context, c *pawl.Client) (*pawl.Lease, error) {
	opts := pawl.LockOptions{Barging: j.barge}
	var l pawl.Locker = c.Mutex(j.name).With(opts)
	switch {
	case j.shared:
		l = c.RWMutex(j.name).With(opts).RLocker()
	case j.limited:
		l = c.Semaphore(j.name, j.permits).With(opts)
	}
	if j.try {
		return l.TryLock(ctx)
	}
	if j.wait > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, j.wait, fmt.Errorf("held by others for all of %v", j.wait))
		defer cancel()
		ctx = limited
	}
	return l.Lock(ctx)
}

// release gives the lock back. It returns an error only if the lock was lost
// before; a store that cannot be told frees it by itself.
func (j *job) release() error {
	ctx, stop := j.interruptible(context.Background())
	defer stop()
	err := j.lease.Unlock(ctx)
	switch {
	case err == nil || j.lost != nil:
		return nil
	case errors.Is(err, pawl.ErrLost):
		return fmt.Errorf("%w; %s did not have it to its end", err, j.command[0])
	}
	complain(os.Stderr, fmt.Errorf("release: %w: the lock stays taken for up to %v", err, j.ttl))
	return nil
}

// leave ends the session in the store, as far as the store can be told soon.
func leave(eng engine.Engine, c *pawl.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	soon(func() {
		if c != nil {
			c.Close(ctx) //nolint:errcheck // expires by itself
		}
		eng.Close() //nolint:errcheck // the process ends
	})
}
