package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
)

// ErrReplaced says that another member has joined with the same ID since. The newest member of an ID stays.
var ErrReplaced = errors.New("another member has joined with the same ID")

// ErrFull says that the group has no room for another member. Members of 1 KiB, with their names and addresses,
// have room for 500 of them, and members of 200 bytes for more than 2,000.
var ErrFull = errors.New("group is full")

const (
	// MaxName is the longest name of a [Group] in bytes.
	MaxName = 256
	// MaxMember is the largest size in bytes of the fields of a [Member] together.
	MaxMember = 4 << 10
	// MaxWeight is the largest weight of a [Member].
	MaxWeight = 65_535
)

// Member is a server, or whatever else belongs to a group.
type Member struct {
	ID     string            `json:"id"`             // tells the member apart; "": Addr
	Addr   string            `json:"addr"`           // such as host:port; of two members with one address the newest counts
	Weight int               `json:"weight"`         // 1 to MaxWeight; 0 is 1
	Meta   map[string]string `json:"meta,omitempty"` // for its users, such as a zone
	Token  uint64            `json:"token"`          // of the join; a later join has a larger token. Join sets Token
}

// equal reports whether nothing has changed.
func (m Member) equal(o Member) bool {
	return m.ID == o.ID && m.Addr == o.Addr && m.Weight == o.Weight && m.Token == o.Token && maps.Equal(m.Meta, o.Meta)
}

// check fills in the defaults, and replaces what JSON would replace. The size is that of the fields as they are stored.
func (m Member) check() (Member, error) {
	m.ID, m.Addr, m.Weight = valid(cmp.Or(m.ID, m.Addr)), valid(m.Addr), cmp.Or(m.Weight, 1)
	size := len(m.ID) + len(m.Addr)
	given := m.Meta
	m.Meta = maps.Clone(given) // nil stays nil
	clear(m.Meta)
	for key, text := range given {
		key, text = valid(key), valid(text)
		size += len(key) + len(text)
		m.Meta[key] = text
	}
	switch {
	case m.ID == "":
		return m, fmt.Errorf("%w: Member.ID and Member.Addr are empty: one of them is needed", pawl.ErrInvalid)
	case m.Weight < 1 || m.Weight > MaxWeight:
		return m, fmt.Errorf("%w: Member.Weight is %d: 0 (the same as 1) to %d are allowed", pawl.ErrInvalid, m.Weight, MaxWeight)
	case size > MaxMember:
		return m, fmt.Errorf("%w: Member has %d bytes: at most %d are allowed", pawl.ErrInvalid, size, MaxMember)
	}
	return m, nil
}

// valid replaces each byte that is no UTF-8 with U+FFFD.
func valid(text string) string { return string([]rune(text)) }

// Group is a list of live members. All methods are safe for concurrent use. Up to three clients that are
// members, or watch, also take dead members off the list.
type Group struct {
	client *pawl.Client
	name   string
	err    error // the mistake in the description, returned at the first use
	head   *pawl.Value
	pages  [pages]*pawl.Value
	locks  *pawl.Scope // of members
	sweeps *pawl.Scope // of sweepers

	mu    sync.Mutex
	users int // memberships and watches
	stop  func()
}

// New returns the group of this name in the store of the client. New asks the store nothing. A name
// out of its range, 1 to [MaxName] bytes, is a [pawl.ErrInvalid] at the first use. A store without versioned values is a
// [pawl.ErrUnsupported]. See [pawl.Client.Mutex] for names.
func New(client *pawl.Client, name string) *Group {
	g := &Group{client: client, name: name, err: pawl.CheckName(name), locks: client.Scope("group-member"), sweeps: client.Scope("group-sweep")}
	if g.err == nil && len(name) > MaxName {
		g.err = fmt.Errorf("%w: name has %d bytes: at most %d are allowed", pawl.ErrInvalid, len(name), MaxName)
	}
	g.head = client.Scope("group").Value(name).Idempotent()
	for i := range g.pages {
		g.pages[i] = client.Scope("group-page").Value(fmt.Sprintf("%s/%d", name, i)).Idempotent()
	}
	if g.err == nil {
		g.err = g.head.Err()
	}
	return g
}

// Name returns the name of the group.
func (g *Group) Name() string { return g.name }

func (g *Group) failed(doing string, err error) error {
	return fmt.Errorf("group %q: %s: %w", g.name, doing, err)
}

// Members returns the members that live now, in the order of their IDs. Members reads the list and
// asks for the lock of each member. Callers that balance over the members use [Group.Watch].
//
// Members has no memory: members that lost their session in an outage are missing until they have joined again. If
// nobody is left while the store grants no locks, Members fails with [pawl.ErrGrace].
func (g *Group) Members(ctx context.Context) ([]Member, error) {
	all, err := g.living(ctx)
	if err != nil {
		return nil, g.failed("members", err)
	}
	return all, nil
}

func (g *Group) living(ctx context.Context) ([]Member, error) {
	if g.err != nil {
		return nil, g.err
	}
	list := newList(g)
	if _, err := list.read(ctx, true); err != nil {
		return nil, err
	}
	var locks []string
	for _, page := range list.entries {
		for _, e := range page {
			locks = append(locks, e.Lock)
		}
	}
	held, err := g.held(ctx, locks)
	if err != nil {
		return nil, err
	}
	all := list.members(func(e entry) bool { _, is := held[e.Lock]; return is })
	if len(all) > 0 {
		return all, nil
	}
	r, err := g.probe(ctx)
	if err == nil && r.Grace.On() {
		err = fmt.Errorf("%w: no member is known, and the store grants no locks for %v", pawl.ErrGrace, r.Grace.Left)
	}
	return nil, err
}

// probe asks whether the store grants locks.
func (g *Group) probe(ctx context.Context) (pawl.Resource, error) {
	return g.client.Show(ctx, g.sweeps.Mutex(g.name+"/0").Name())
}

// askAtOnce is how many locks are asked for at a time.
const askAtOnce = 16

// held asks for locks by name, because a list of them would search all keys of a Redis server. held returns the locks with a holder, also after
// an error. The session of the holder lives until the time of the lock at least. That time has passed where the store does not tell it.
func (g *Group) held(ctx context.Context, locks []string) (held map[string]time.Time, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	held = make(map[string]time.Time)
	todo := make(chan string, len(locks))
	for _, lock := range locks {
		todo <- lock
	}
	close(todo)
	var mu sync.Mutex // of held and err
	var asking sync.WaitGroup
	for range min(askAtOnce, len(locks)) {
		asking.Go(func() {
			for lock := range todo {
				asked := time.Now()
				r, failed := g.client.Show(ctx, lock)
				mu.Lock()
				if err = cmp.Or(err, failed); len(r.Holders) > 0 {
					held[lock] = asked.Add(r.Holders[0].Left)
				}
				mu.Unlock()
				if failed != nil {
					stop()
					return
				}
			}
		})
	}
	asking.Wait()
	return held, err
}

// use counts a user of the group, and starts its sweeper with the first user.
func (g *Group) use() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users++; g.users == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); g.sweep(ctx) }()
		g.stop = func() { cancel(); <-ended }
	}
}

// unuse ends what use began. The last user waits until the sweeper has ended, and a new user does not wait for that.
func (g *Group) unuse() {
	g.mu.Lock()
	g.users--
	stop, last := g.stop, g.users == 0
	g.mu.Unlock()
	if last {
		stop()
	}
}
