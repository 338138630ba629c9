package pawl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// Unknown stands for a duration that the store does not tell.
const Unknown = engine.Unknown

// Resource is a name as an operator sees it: its kind, its holders and its waiters. Resource shows the
// state at the time of the read.
type Resource struct {
	Name    string
	Kind    string  // "lock" or "semaphore"; "" when nobody holds it or waits
	Permits int     // of a semaphore; 0 of a lock
	Barging bool    // see LockOptions
	Holders []Party // in the order in which they came
	Waiters []Party // the next holder first

	// Grace says that the store started lately and may have forgotten holders. The store then
	// grants nothing for now. See its On.
	Grace engine.Grace

	// Broken is the note of the last Break of this name, which may be old; nil: there is no note.
	// Only Show reads the note.
	Broken *Broken
}

// Party is a holder or a waiter.
type Party struct {
	Claim   string // names this party for Client.Break; no other claim ever has this id
	Owner   string // parties of one owner share their grant
	Session string // of its client
	Label   string
	Token   fence.Token // 0 while the party waits
	Shared  bool        // the party holds or wants the reading side of a lock
	Permits int         // of a semaphore; 0 of a lock
	Kept    bool        // a minimum hold, which stays for its time even if its holder leaves

	// These count on the store's clock. These times are negative (Unknown) where the store does not tell
	// them.
	Age  time.Duration // since the party asked
	Held time.Duration // since the grant
	Left time.Duration // until the session ends unless the client renews it
}

// keptSuffix ends the id of a claim of a minimum hold.
const keptSuffix = ".kept"

func partyOf(r engine.Resource, c engine.ClaimInfo) Party {
	p := Party{
		Claim: c.ID, Owner: c.Owner, Session: c.Session, Label: c.Label, Token: c.Token,
		Kept: strings.HasSuffix(c.ID, keptSuffix),
		Age:  c.Age, Held: c.Held, Left: c.Left,
	}
	if r.Kind == engine.KindSemaphore {
		p.Permits = int(c.Weight)
	} else {
		p.Shared = c.Weight < r.Capacity
	}
	return p
}

func resourceOf(r engine.Resource) Resource {
	is := Resource{Name: r.Name, Grace: r.Grace}
	if len(r.Claims) == 0 {
		return is
	}
	is.Kind, is.Barging = string(r.Kind), r.Barging
	if r.Kind == engine.KindSemaphore {
		is.Permits = int(r.Capacity)
	}
	for _, c := range r.Claims {
		if c.Token != 0 {
			is.Holders = append(is.Holders, partyOf(r, c))
		} else {
			is.Waiters = append(is.Waiters, partyOf(r, c))
		}
	}
	return is
}

// Show reads the holders and waiters of a name. Show takes any name, also the names that
// [Client.List] yields, and needs no session. Show fails with [ErrUnavailable], [ErrInvalid] or
// [ErrClosed].
func (c *Client) Show(ctx context.Context, name string) (Resource, error) {
	is, err := c.look(ctx, name)
	if err != nil {
		return Resource{}, fmt.Errorf("show %q: %w", name, err)
	}
	if is.Broken, err = c.broken(ctx, name); err != nil {
		return Resource{}, fmt.Errorf("show %q: %w", name, err)
	}
	return is, nil
}

func (c *Client) look(ctx context.Context, name string) (is Resource, err error) {
	if err := checkText("name", name); err != nil {
		return is, err
	}
	r, err := c.claims(ctx, name)
	is = resourceOf(r)
	is.Name = name
	return is, err
}

// claims reads the claims of a name.
func (c *Client) claims(ctx context.Context, name string) (is engine.Resource, err error) {
	err = c.ask(ctx, "show", func(ctx context.Context) (err error) {
		is, err = c.engine.Show(ctx, name)
		return err
	})
	return is, err
}

// stored reads the value that is stored under a key.
func (c *Client) stored(ctx context.Context, key string) (is engine.Value, err error) {
	err = c.ask(ctx, "get", func(ctx context.Context) (err error) {
		is, err = c.values.Get(ctx, key)
		return err
	})
	return is, err
}

// ask asks the store once, without a session.
func (c *Client) ask(ctx context.Context, doing string, ask func(context.Context) error) error {
	if c.life.Err() != nil {
		return ErrClosed
	}
	bound, cancel := c.bounded(ctx, c.opts.RequestTimeout)
	defer cancel()
	return c.ended(ctx, unavailable(bound, doing, ask(bound)))
}

// ended returns why a request failed: Close, or the error of ctx as well.
func (c *Client) ended(ctx context.Context, err error) error {
	switch {
	case err != nil && c.life.Err() != nil:
		return ErrClosed
	case err != nil && ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// listAtOnce is how many names List asks for at a time.
const listAtOnce = 16

// List yields every name that begins with prefix and that has a holder or a waiter. The names come
// in no order, each once. [Client.Show] reads a name in the same way, and also reads Broken. List
// may miss a name that comes or goes meanwhile. Names that begin with "pawl:" belong to primitives
// such as [Election].
//
// List asks for several names at a time and yields each answer as it comes. Each request is
// bounded; the whole list is not. List ends after the first error.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Resource, error] {
	return func(yield func(Resource, error) bool) {
		var asking sync.WaitGroup
		defer asking.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		answers := make(chan chan listed, listAtOnce)
		var ended error // why List did not ask for all names; set before answers is closed
		asking.Go(func() {
			defer close(answers)
			ended = c.list(ctx, prefix, answers, &asking)
		})
		for answer := range answers {
			a := <-answer
			if a.err != nil {
				yield(Resource{}, fmt.Errorf("list %q: %w", prefix, a.err))
				return
			}
			if a.Kind != "" && !yield(a.Resource, nil) { // else the name has gone meanwhile
				return
			}
		}
		if ended != nil {
			yield(Resource{}, fmt.Errorf("list %q: %w", prefix, ended))
		}
	}
}

type listed struct {
	Resource
	err error
}

// list asks ahead. For each name, in order, list sends the channel on which the answer will come.
func (c *Client) list(ctx context.Context, prefix string, answers chan<- chan listed, asking *sync.WaitGroup) error {
	return c.names(ctx, c.engine.List, prefix, func(name string) error {
		answer := make(chan listed, 1)
		select {
		case answers <- answer:
		case <-ctx.Done():
			return ctx.Err()
		}
		asking.Go(func() {
			r, err := c.look(ctx, name)
			answer <- listed{r, err}
		})
		return nil
	})
}

// lister lists names in the store: those of resources, or of values.
type lister func(ctx context.Context, prefix string) iter.Seq2[string, error]

// names calls each with every name in the store. The store has the time of one request for each
// next name or step of its search, not counting the time that each takes.
func (c *Client) names(ctx context.Context, list lister, prefix string, each func(string) error) error {
	if c.life.Err() != nil {
		return ErrClosed
	}
	joined, cancel := join(ctx, c.life)
	defer cancel()
	bound, stop := context.WithCancel(joined)
	defer stop()
	silence := time.AfterFunc(c.opts.RequestTimeout, stop)
	defer silence.Stop()
	for name, err := range list(bound, prefix) {
		silence.Stop()
		switch {
		case err != nil && c.life.Err() != nil:
			return ErrClosed
		case err != nil && ctx.Err() != nil:
			return errors.Join(ctx.Err(), unavailable(bound, "list", err))
		case err != nil:
			return unavailable(bound, "list", err)
		}
		if name != "" { // else the store still searches
			if err := each(name); err != nil {
				return err
			}
		}
		silence.Reset(c.opts.RequestTimeout)
	}
	return nil
}

// BreakOptions name the parties that [Client.Break] evicts, and the reason. At most one of Token
// and Claim may be set; with neither, Break evicts all holders.
type BreakOptions struct {
	Token   fence.Token // the holders that have this token
	Claim   string      // this party, which may wait
	Reason  string      // for the holder and for operators; up to 512 bytes without control characters
	Label   string      // of the operator; the default is Options.Label
	Unnoted bool        // Break leaves no note, and keeps Label and Reason nowhere. A program that draws a new name each time would leave a note for each
}

// Break takes a name away from its holders, and returns the parties that it evicted; no holder is
// no error. The next waiter gets the name at once. An evicted holder learns of the eviction within
// a third of its TTL. Until then it may work beside the next holder: only a resource that checks
// tokens is safe from that.
//
// Where the store keeps versioned values, Break notes the operator and the reason there before it
// evicts; see [Resource.Broken]. If the note fails, Break evicts all the same, and says so in the
// error. One small value stays for each name, unless BreakOptions.Unnoted is set. Break fails with [ErrUnavailable] when the store did
// not answer: then some holders may be evicted. Break needs no session.
func (c *Client) Break(ctx context.Context, name string, opts BreakOptions) (evicted []Party, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("break %q: %w", name, err)
		}
	}()
	if opts.Label == "" {
		opts.Label = c.opts.Label
	}
	if err := opts.validate(); err != nil {
		return nil, err
	}
	is, err := c.look(ctx, name)
	if err != nil {
		return nil, err
	}
	victims := opts.victims(is)
	if len(victims) == 0 {
		return nil, nil
	}
	var trouble error
	if !opts.Unnoted {
		trouble = c.note(ctx, name, opts.note(victims))
	}
	evicted, err = c.evict(ctx, name, victims)
	return evicted, errors.Join(err, trouble)
}

func (o *BreakOptions) validate() error {
	if o.Token != 0 && o.Claim != "" {
		return invalid("BreakOptions has a Token and a Claim: at most one of them is allowed")
	}
	if o.Reason != "" {
		if err := checkText("BreakOptions.Reason", o.Reason); err != nil {
			return err
		}
	}
	return checkText("BreakOptions.Label", o.Label)
}

func (o *BreakOptions) victims(is Resource) (victims []Party) {
	parties := is.Holders
	if o.Claim != "" {
		parties = append(parties, is.Waiters...)
	}
	for _, p := range parties {
		if (o.Claim == "" || p.Claim == o.Claim) && (o.Token == 0 || p.Token == o.Token) {
			victims = append(victims, p)
		}
	}
	return victims
}

func (o *BreakOptions) note(victims []Party) *Broken {
	n := &Broken{Label: o.Label, Reason: o.Reason, Claim: o.Claim, All: o.Claim == "" && o.Token == 0}
	for _, p := range victims {
		n.Token = max(n.Token, p.Token)
	}
	return n
}

// evict takes the claims of others away, and returns the claims that were still there.
func (c *Client) evict(ctx context.Context, name string, victims []Party) (evicted []Party, err error) {
	for _, p := range victims {
		switch err := c.ask(ctx, "evict", func(ctx context.Context) error { return c.engine.Evict(ctx, name, p.Claim) }); {
		case err == nil:
			evicted = append(evicted, p)
		case !errors.Is(err, engine.ErrGone): // else it had left meanwhile
			return evicted, err
		}
	}
	return evicted, nil
}

// Err returns nil while the client is well: its session lives and the store answered the last
// request for that session. Err also returns nil before the first try to open a session. Err sends no request.
//
// Err returns an error that matches [ErrUnavailable] while the store does not answer, also when the
// held locks are still valid. The error matches [ErrLost] when the session was lost, until the next
// lock opens another session, and [ErrClosed] after Close.
func (c *Client) Err() error {
	c.mu.Lock()
	s := c.current
	c.mu.Unlock()
	var lost error
	switch {
	case c.life.Err() != nil:
		return ErrClosed
	case s == nil:
	case s.life.Err() != nil:
		lost = context.Cause(s.life)
	case s.left() <= 0: // the timer is late, or the machine slept
		lost = fmt.Errorf("%w: no renewal reached the store within the TTL of %v", ErrLost, c.opts.TTL)
	}
	return errors.Join(lost, c.unheard())
}

// hears remembers whether the store answered the last request for the session.
func (c *Client) hears(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, ErrUnavailable) {
		c.trouble = err
	} else {
		c.trouble = nil
	}
}

// unheard returns the error of the last request for the session, or nil if the store answered it.
func (c *Client) unheard() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}
