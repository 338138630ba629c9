//go:build unix

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/group"
)

const joinHelp = `Run CMD, which serves at --addr, as a member of the group NAME. Balancers, such as
"pawl proxy", find the members there. "pawl members NAME" lists them.

CMD is a member while it is healthy. With --check pawl asks the URL each --check-every:

  http://, https://   healthy if GET is answered with a status of 200 to 299
  tcp://HOST:PORT     healthy if a connection is made

A check may take a second, or --check-every if that is longer. CMD joins after the first
check that succeeds, and leaves after --check-fails failures one after another. Without
--check CMD joins as soon as it has started.

When pawl gets INT, TERM, HUP or QUIT, CMD leaves the group first. Pawl waits --drain, so
that balancers have seen that and requests under way can end. Then pawl passes the signal
on. If the store does not answer, pawl waits for --drain from the signal on, or 5 s if that
is longer. A second signal is passed on at once. When CMD ends by itself, it leaves at once.

A store that is away does not stop CMD. A member whose session was lost meanwhile joins
again by itself. A member whose pawl was killed or stopped is gone --ttl and a second later.

Of two members with the same --id, the newest stays. The other is drained and stopped,
and its pawl exits with 74. If CMD has not ended --grace after the signal, SIGKILL follows.
Of two IDs with one --addr, balancers see the newest.

CMD is run and passed signals as by "pawl run". CMD does not outlive pawl. The
environment of CMD also has PAWL_NAME, the group, and PAWL_ADDR, the value of --addr.

Exit codes, when not the code of CMD:
   64  wrong usage
   69  the store is unavailable at the start
   70  internal error
   74  another member has joined with the same --id
  126  CMD cannot be executed; 127: CMD is not found
  128+n  CMD was ended by signal n, or pawl before CMD ran`

// joinOptions are the user's options of join.
type joinOptions struct {
	runOptions
	member    group.Member
	meta      []string
	check     string
	health    health
	drain     time.Duration
	killAfter time.Duration // --grace, which no lock limits here
}

func newJoin(s *store) *cobra.Command {
	o := &joinOptions{runOptions: runOptions{store: s}}
	cmd := &cobra.Command{
		Use:     "join NAME --addr HOST:PORT [flags] -- CMD [ARG...]",
		Short:   "Run a server as a member of a group",
		Long:    joinHelp,
		Example: "  pawl join api --addr 10.0.0.7:8080 --check http://127.0.0.1:8080/healthz -- ./server",

		DisableFlagsInUseLine: true,
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd, args); err != nil {
				return err
			}
			return o.join(cmd.Context())
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.member.Addr, "addr", "", "where balancers reach CMD: HOST:PORT")
	f.StringVar(&o.member.ID, "id", "", "tells the member apart (default: --addr)")
	f.IntVar(&o.member.Weight, "weight", 1, fmt.Sprintf("the share of the requests beside other members, 1 to %d", group.MaxWeight))
	f.StringArrayVar(&o.meta, "meta", nil, "KEY=VALUE for users of the list, such as zone=a; several may be given")
	f.StringVar(&o.check, "check", "", "the URL that says whether CMD is healthy (default: CMD is healthy while it runs)")
	f.DurationVar(&o.health.every, "check-every", time.Second, "the time between two checks, 100ms to 1h")
	f.IntVar(&o.health.fails, "check-fails", 3, "failures one after another that make CMD leave, 1 to 100")
	f.DurationVar(&o.drain, "drain", 5*time.Second, "how long CMD goes on after it has left, before pawl stops it; 0 to 1h")
	f.DurationVar(&o.killAfter, "grace", 30*time.Second, "from the signal to SIGKILL when another member has joined with the same --id; 0 to 1h")
	f.DurationVar(&o.ttl, "ttl", defaultTTL, "how long a member stays in the list when its machine has died")
	f.StringVar(&o.label, "label", "", "the purpose, shown after host and process id (default: CMD)")
	return cmd
}

// complete checks the options without a store.
func (o *joinOptions) complete(cmd *cobra.Command, args []string) error {
	form := "the form is: " + cmd.UseLine()
	switch dash := cmd.ArgsLenAtDash(); {
	case len(args) == 0 || dash == 0:
		return usageError("the name is missing: %s", form)
	case dash < 0:
		return usageError("-- is missing before the command: %s", form)
	case dash > 1:
		return usageError("%d names stand before --: %s", dash, form)
	case len(args) < 2:
		return usageError("the command is missing: %s", form)
	}
	o.name, o.command = args[0], args[1:]
	if err := pawl.CheckName(o.name); err != nil {
		return err
	}
	if len(o.name) > group.MaxName {
		return usageError("NAME has %d bytes: at most %d are allowed", len(o.name), group.MaxName)
	}
	switch {
	case o.health.every < 100*time.Millisecond || o.health.every > time.Hour:
		return usageError("--check-every is %v: 100ms to 1h are allowed", o.health.every)
	case o.health.fails < 1 || o.health.fails > 100:
		return usageError("--check-fails is %d: 1 to 100 are allowed", o.health.fails)
	case o.drain < 0 || o.drain > time.Hour:
		return usageError("--drain is %v: 0 to 1h are allowed", o.drain)
	case o.killAfter < 0 || o.killAfter > time.Hour:
		return usageError("--grace is %v: 0 to 1h are allowed", o.killAfter)
	}
	for _, name := range []string{"check-every", "check-fails"} {
		if cmd.Flags().Changed(name) && o.check == "" {
			return usageError("--%s is for --check", name)
		}
	}
	if err := o.health.reads(o.check); err != nil {
		return err
	}
	if err := o.completeMember(cmd); err != nil {
		return err
	}
	return o.completeCommon(cmd)
}

// completeMember checks the fields of the member.
func (o *joinOptions) completeMember(cmd *cobra.Command) error {
	m := &o.member
	host, port, err := net.SplitHostPort(m.Addr)
	n, wrong := strconv.ParseUint(port, 10, 16) // no sign: it would be no port in a URL
	switch {
	case !cmd.Flags().Changed("addr"):
		return usageError("--addr is missing: the address at which balancers reach CMD")
	case err != nil || wrong != nil || host == "" || n == 0:
		return usageError("--addr is %q: HOST:PORT is allowed, with a port from 1 to 65535", m.Addr)
	case unspecified(host):
		return usageError("--addr is %q, at which a server listens: an address that balancers can reach is allowed", m.Addr)
	case strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`/\?#@"<>[]`, r) }):
		return usageError("--addr is %q: the host is neither a name nor an address", m.Addr)
	case m.Weight < 1 || m.Weight > group.MaxWeight:
		return usageError("--weight is %d: 1 to %d are allowed", m.Weight, group.MaxWeight)
	}
	m.ID = cmp.Or(m.ID, m.Addr)
	size := len(m.ID) + len(m.Addr)
	for _, text := range o.meta {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return usageError("--meta is %q: KEY=VALUE is allowed", text)
		}
		if m.Meta == nil {
			m.Meta = make(map[string]string)
		}
		if _, again := m.Meta[key]; again {
			return usageError("--meta has the key %q twice", key)
		}
		m.Meta[key] = value
		size += len(key) + len(value)
	}
	if size > group.MaxMember {
		return usageError("--id, --addr and --meta have %d bytes: at most %d are allowed", size, group.MaxMember)
	}
	return nil
}

// unspecified reports whether a host is 0.0.0.0 or ::. A balancer that dials such a host reaches its own machine.
func unspecified(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsUnspecified()
}

// join runs the command as a member. The store is asked before, because a wrong store is a mistake of the operator.
func (o *joinOptions) join(ctx context.Context) (err error) {
	path, err := lookPath(o.command[0])
	if err != nil {
		return notRunnable(o.command[0], err)
	}
	j := &job{runOptions: &o.runOptions, signals: catchSignals()}
	if j.guard, err = startGuard(); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	defer j.guard.end()
	a, err := j.reach(ctx)
	defer a.leave(closeWithin)
	if err != nil {
		return err
	}
	p := &presence{group: group.New(a.client, o.name), member: o.member, health: o.health}
	if err := p.probe(ctx, j); err != nil {
		return err
	}
	if err := j.guard.ready(); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	if err := j.begin(path, "PAWL_NAME="+o.name, "PAWL_ADDR="+o.member.Addr); err != nil {
		return err
	}
	s := &member{job: j, presence: p, drain: o.drain, killAfter: o.killAfter}
	code, err := j.finish(s.serve(ctx))
	switch {
	case err != nil:
		return err
	case s.ousted:
		return &exitError{exitLost, nil}
	case code != 0:
		return &exitError{code, nil}
	}
	return nil
}

// probe asks the group once, so that a store without groups, or without an answer, is known at once.
func (p *presence) probe(ctx context.Context, j *job) error {
	ctx, stop := j.interruptible(ctx)
	defer stop()
	err := ask(ctx, func(ctx context.Context) error {
		_, err := p.group.Members(ctx)
		return err
	})
	if errors.Is(err, pawl.ErrGrace) { // a member waits for the end of that
		err = nil
	}
	return j.said(ctx, err)
}

// member is a command that serves as a member.
type member struct {
	*job
	presence  *presence
	drain     time.Duration
	killAfter time.Duration
	ousted    bool             // another member has the ID
	kill      <-chan time.Time // not nil: an ousted server has been told to end
}

// serve passes signals on until the command has ended. A signal that ends pawl waits until the member has left and is drained.
func (m *member) serve(ctx context.Context) childEvent {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	gone := make(chan departure, 1)
	go func() { gone <- m.presence.keep(ctx) }()
	var end syscall.Signal // to be passed on; 0: pawl goes on
	var asked time.Time    // when that signal came
	var drained <-chan time.Time
	hurried := false
	for {
		select {
		case ev := <-m.child.events:
			if !ev.status.Stopped() {
				leave()
				if gone != nil {
					<-gone
				}
				return ev
			}
			m.stopped(ev.status.StopSignal())
		case sig := <-m.signals:
			is := sig.(syscall.Signal)
			switch {
			case !ends(sig):
				m.signal(is)
			case end == 0:
				end, asked = is, time.Now()
				leave()
			default: // the second
				hurried, drained = true, nil
				m.pass(is)
			}
		case left := <-gone:
			gone = nil
			if end == 0 {
				end, m.ousted = syscall.SIGTERM, errors.Is(left.why, group.ErrReplaced)
				complain(fmt.Errorf("%w; stopping %s", left.why, m.command[0]))
			}
			wait := m.drain
			switch {
			case !left.seen:
				wait = 0
			case left.untold: // that has taken a part of the time
				wait -= time.Since(asked)
			}
			if !hurried {
				drained = time.After(wait)
			}
		case <-drained:
			drained = nil
			m.pass(end)
		case <-m.kill:
			m.signal(syscall.SIGKILL)
		}
	}
}

// pass passes a signal on. The first one to a replaced server begins the time until SIGKILL.
func (m *member) pass(sig syscall.Signal) {
	m.signal(sig)
	if m.ousted && m.kill == nil {
		m.kill = time.After(m.killAfter)
	}
}
