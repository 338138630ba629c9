//go:build unix

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
)

const electHelp = `Keep one CMD running among all candidates for the same NAME. Each candidate waits
until it leads the election NAME, and runs CMD while it leads. When CMD ends by itself,
with any code, the next candidate leads. The old leader campaigns again after a pause:
1s, and up to 30s while CMD ends within 10s each time.

CMD is run and stopped as by "pawl run", with the same environment. CMD does not outlive
the leadership, also when pawl is killed or stopped. Then another CMD runs elsewhere at
most the TTL and a second later. Pawl passes INT, TERM, HUP and QUIT on to CMD, hands over
to the next candidate and ends.

The leader announces host and process id, or --value, to observers of the
election with the library. "pawl show pawl:election/NAME" shows the leader and
the candidates. "pawl break pawl:election/NAME --yes" makes the next candidate lead.

Elect ends by a signal or by --once. Exit codes then, when not the code of CMD:
   64  wrong usage
   69  the store is unavailable at the start
   74  the leadership was lost
  126  CMD cannot be executed at the start; 127: CMD is not found
  128+n  signal n came before CMD ran
After the start pawl retries, also when CMD or pawl itself is replaced.`

// electOptions are the user's options of elect.
type electOptions struct {
	runOptions
	value string
	once  bool
}

const (
	electPause     = time.Second
	mostElectPause = 30 * time.Second
	atOnce         = 10 * time.Second // a command that runs no longer than this counts as failed at once
)

func newElect(s *store) *cobra.Command {
	o := &electOptions{runOptions: runOptions{store: s}}
	cmd := &cobra.Command{
		Use:     "elect [flags] NAME -- CMD [ARG...]",
		Short:   "Keep one command running in a fleet",
		Long:    electHelp,
		Example: "  pawl elect --store redis://cache:6379 scheduler -- ./scheduler",

		DisableFlagsInUseLine: true,
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if err := o.split(cmd, args); err != nil {
				return err
			}
			if err := o.completeCommon(cmd); err != nil {
				return err
			}
			return o.elect(cmd.Context())
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after NAME belong to CMD
	o.commonFlags(cmd)
	f.StringVar(&o.value, "value", "", "the leader's announcement (default: host, process id and command)")
	f.BoolVar(&o.once, "once", false, "end when CMD has ended, with its exit code")
	return cmd
}

// candidate is a run of elect.
type candidate struct {
	*electOptions
	signals  chan os.Signal
	client   *pawl.Client
	election *pawl.Election
}

// job is the next time that the command runs.
func (c *candidate) job() *job { return &job{runOptions: &c.runOptions, signals: c.signals} }

func (o *electOptions) elect(ctx context.Context) error {
	if _, err := lookPath(o.command[0]); err != nil {
		return notRunnable(o.command[0], err)
	}
	if o.value == "" {
		o.value = o.label
	}
	c := &candidate{electOptions: o, signals: catchSignals()}
	a, err := c.job().reach(ctx)
	defer a.leave(closeWithin)
	if err != nil {
		return err
	}
	c.client, c.election = a.client, a.client.Election(o.name)
	for pause := electPause; ; {
		j := c.job()
		ran, err := c.term(ctx, j)
		if err == nil || !errors.Is(err, errAgain) {
			return err
		}
		rest := electPause
		switch {
		case errors.Is(err, errStore): // all candidates meet the trouble together
			rest = (electPause/4 + rand.N(electPause/2)).Round(10 * time.Millisecond)
		case j.lost == nil: // the command ends by itself
			if ran > atOnce {
				pause = electPause
			}
			rest, pause = pause, min(2*pause, mostElectPause)
		}
		complain(fmt.Errorf("%q: %w in %v", o.name, err, rest))
		if err := j.rest(ctx, rest); err != nil {
			return err
		}
	}
}

// errAgain says that there is no reason to end. errStore says that the store is the trouble.
var (
	errAgain = errors.New("campaigning again")
	errStore = fmt.Errorf("%w", errAgain)
)

// term waits until the candidate leads, runs the command, and hands over. ran is how long the
// command ran.
func (c *candidate) term(ctx context.Context, j *job) (ran time.Duration, err error) {
	if err := c.campaign(ctx, j); err != nil {
		return 0, err
	}
	began := time.Now()
	code, err := c.serve(j)
	ran = time.Since(began)
	if lost := c.resign(j); lost != nil && err == nil {
		code, err = exitLost, lost
	}
	if exit := (*exitError)(nil); errors.As(err, &exit) {
		code, err = exit.code, exit.err
	}
	switch {
	case (j.ended || c.once) && code == 0 && err == nil:
		return ran, nil
	case j.ended || c.once:
		return ran, &exitError{cmp.Or(code, exitInternal), err}
	case err != nil: // the program may have been replaced, and other candidates may have it
		return ran, fmt.Errorf("%w; %w", err, errAgain)
	case j.lost != nil:
		return ran, fmt.Errorf("no longer the leader; %w", errAgain)
	}
	return ran, fmt.Errorf("%s ended with exit code %d; %w", c.command[0], code, errAgain)
}

// serve runs the command. The path of the command may have changed since the last run.
func (c *candidate) serve(j *job) (code int, err error) {
	path, err := lookPath(c.command[0])
	if err != nil {
		return 0, notRunnable(c.command[0], err)
	}
	if j.guard, err = startGuard(); err != nil {
		return 0, fmt.Errorf("start the guard: %w", err)
	}
	defer j.guard.end()
	return j.execute(path)
}

// campaign waits until the candidate leads. A signal ends the campaign, and trouble does not.
func (c *candidate) campaign(ctx context.Context, j *job) error {
	ctx, stop := j.interruptible(ctx)
	defer stop()
	show := startWaitLine(c.client, electionNames+c.name, c.name, c.label)
	var err error
	j.lease, err = c.election.Campaign(ctx, []byte(c.value))
	show.stop()
	if err == nil && ctx.Err() != nil { // the signal and the leadership came at once
		err = errors.Join(ctx.Err(), c.election.Resign(ctx, j.lease))
	}
	if err = j.said(ctx, err); errors.As(err, new(*exitError)) {
		return err
	}
	for _, passing := range []error{pawl.ErrUnavailable, pawl.ErrLost, pawl.ErrNotAcquired} {
		if errors.Is(err, passing) {
			return fmt.Errorf("%w; %w", err, errStore)
		}
	}
	return err
}

// resign hands over to the next candidate. resign returns an error only if the leadership was lost before, and pawl learns that only
// here. That also holds after a signal which pawl passed on to the command. If the store does not answer, the end of the session hands over.
func (c *candidate) resign(j *job) error {
	ctx, stop := j.interruptible(context.Background())
	defer stop()
	err := c.election.Resign(ctx, j.lease)
	j.ended = j.ended || ctx.Err() != nil
	switch {
	case err == nil || j.lost != nil:
		return nil
	case errors.Is(err, pawl.ErrLost):
		j.lost = err
		return fmt.Errorf("%w; %s did not lead to its end", err, j.command[0])
	}
	complain(fmt.Errorf("resign: %w: nobody leads for up to %v", err, c.ttl))
	return nil
}

// rest pauses before the next campaign, unless a signal comes.
func (j *job) rest(ctx context.Context, pause time.Duration) error {
	ctx, stop := j.interruptible(ctx)
	defer stop()
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
	return j.said(ctx, nil)
}
