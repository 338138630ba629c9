//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/group"
)

// health is how a server is asked whether it is healthy.
type health struct {
	ask   func(context.Context) error // nil: the server is healthy while it runs
	every time.Duration
	fails int
}

// reads understands the URL of a check. No error repeats the URL, because it may have a password.
func (h *health) reads(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err == nil && u.Port() != "" {
		_, err = net.LookupPort("tcp", u.Port())
	}
	switch {
	case err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "":
		h.ask = func(ctx context.Context) error { return askHTTP(ctx, text) }
	case err == nil && u.Scheme == "tcp" && u.Hostname() != "" && u.Port() != "" && u.Path == "":
		h.ask = func(ctx context.Context) error { return askTCP(ctx, u.Host) }
	default:
		return usageError("--check is no such URL: http://HOST, https://HOST and tcp://HOST:PORT are allowed")
	}
	return nil
}

// checker has no proxy and keeps no connection, because a new client would have neither.
var checker = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func askHTTP(ctx context.Context, to string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "pawl-join")
	answer, err := checker.Do(r)
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) { // it repeats the URL
		err = wrapped.Err
	}
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("the status is %s", answer.Status)
	}
	return nil
}

func askTCP(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// check asks once.
func (h *health) check(ctx context.Context) error {
	within := max(h.every, time.Second)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %v", within))
	defer cancel()
	err := h.ask(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}

// presence keeps a member in its group while its server is healthy.
type presence struct {
	group  *group.Group
	member group.Member
	health health
}

// departure says how a presence has ended.
type departure struct {
	seen   bool  // balancers may still send requests to the member
	untold bool  // the store did not take the leave
	why    error // nil: the caller ended the presence
}

// keep joins, leaves and joins again until ctx ends or the member cannot stay. Then the member has left.
func (p *presence) keep(ctx context.Context) departure {
	told := ""
	for again := ""; ; {
		if !p.untilHealthy(ctx) {
			return departure{}
		}
		is, err := p.group.Join(ctx, p.member)
		switch {
		case err != nil && ctx.Err() != nil:
			return departure{}
		case errors.Is(err, pawl.ErrClosed):
			return departure{why: err}
		case err != nil:
			if text := err.Error(); text != told {
				complain(fmt.Errorf("%w; trying again", err))
				told = text
			}
			p.pause(ctx)
			continue
		}
		if told+again != "" {
			news("group %q: member %q has joined%s", p.group.Name(), p.member.ID, again)
		}
		told, again = "", " again"
		sick := p.whileHealthy(ctx, is)
		if why := is.Err(); why != nil {
			return departure{seen: true, why: why}
		}
		if sick != nil {
			complain(fmt.Errorf("group %q: member %q leaves: the check fails: %w", p.group.Name(), p.member.ID, sick))
		}
		left := p.leave(is)
		if ctx.Err() != nil {
			return departure{seen: true, untold: !left}
		}
	}
}

// leave takes the member off the group, and reports whether the store has done so. Else the end of the session does.
func (p *presence) leave(is *group.Membership) bool {
	ctx, stop := context.WithTimeoutCause(context.Background(), answerWithin, fmt.Errorf("no answer within %v", answerWithin))
	defer stop()
	err := is.Leave(ctx)
	if err != nil {
		complain(fmt.Errorf("%w: balancers see the member for up to its TTL", err))
	}
	return err == nil
}

// untilHealthy waits for the first check that succeeds, and reports false if ctx ends before.
func (p *presence) untilHealthy(ctx context.Context) bool {
	for failed := 1; ctx.Err() == nil; failed++ {
		if p.health.ask == nil {
			return true
		}
		err := p.health.check(ctx)
		if err == nil {
			return true
		}
		if failed == p.health.fails && ctx.Err() == nil {
			complain(fmt.Errorf("group %q: member %q is not healthy: %w; checking again", p.group.Name(), p.member.ID, err))
		}
		p.pause(ctx)
	}
	return false
}

// whileHealthy waits until checks fail, and returns the last error. whileHealthy returns nil if ctx or the membership ends before.
func (p *presence) whileHealthy(ctx context.Context, is *group.Membership) error {
	var checks <-chan time.Time
	if p.health.ask != nil {
		tick := time.NewTicker(p.health.every)
		defer tick.Stop()
		checks = tick.C
	}
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-is.Ended():
			return nil
		case <-checks:
		}
		err := p.health.check(ctx)
		if failed++; err == nil {
			failed = 0
		}
		if failed == p.health.fails && ctx.Err() == nil {
			return err
		}
	}
}

// pause waits for the next check, unless ctx ends.
func (p *presence) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(p.health.every):
	}
}
