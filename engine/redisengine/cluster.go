package redisengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// In a cluster a script sees one slot, so a session lives in the slot of each name that it uses. The session
// also has a key of its own: its home, which says that it lives at all. The home is a member of a name
// from its first claim there, under an id that it never has again. So the claims of a lost
// membership stay dead. Each Enter proves that a member lives, and so does Renew for members with
// claims. After Renew, no claim that the session may have is of a member with less than a whole
// TTL.

// member is a session in the slot of one name.
type member struct {
	id     string
	joined bool            // the slot knows it
	claims map[string]bool // that it may have: from before they enter until they have left
	until  time.Time       // when no claim that left can come back alive with old data
	looked string          // where the last look for such claims ended
}

// members are the memberships of a session, by name.
type members struct {
	mu     sync.Mutex
	byName map[string]*member
	last   uint64 // made so far
}

// as returns the session's id in the slot of a name.
func (s *session) as(name string) string {
	if !s.engine.cluster {
		return s.id
	}
	s.members.mu.Lock()
	defer s.members.mu.Unlock()
	if m := s.members.byName[name]; m != nil {
		return m.id
	}
	return s.id
}

// claims notes a claim that is about to enter.
func (s *session) claims(c *engine.Claim) (m *member, joined bool) {
	s.members.mu.Lock()
	defer s.members.mu.Unlock()
	if m = s.members.byName[c.Resource]; m == nil {
		s.members.last++
		m = &member{id: s.id + ":" + strconv.FormatUint(s.members.last, 36), claims: make(map[string]bool)}
		s.members.byName[c.Resource] = m
	}
	m.claims[c.ID] = true
	return m, m.joined
}

// left notes that a claim is in the store no more. A claim comes back alive only with a snapshot
// younger than the TTL, in which its member lives.
func (s *session) left(name, claim string) {
	if !s.engine.cluster {
		s.known.leaves(name, s.opts.TTL)
		return
	}
	s.members.mu.Lock()
	defer s.members.mu.Unlock()
	if m := s.members.byName[name]; m != nil {
		delete(m.claims, claim)
		m.until = time.Now().Add(2 * s.opts.TTL)
	}
}

// part ends a membership. Claims that wait under it are to look.
func (s *session) part(name string, m *member) {
	s.members.mu.Lock()
	if s.members.byName[name] == m {
		delete(s.members.byName, name)
	}
	s.members.mu.Unlock()
	for _, w := range s.inbox.All() {
		if w.Claim.Resource == name {
			w.Look()
		}
	}
}

// arguments are those of a script; in a cluster with the member as which the
// session enters, if it does, and whether that is new.
func (s *session) arguments(args [4]string, as, joins string) []string {
	return s.engine.arguments(args, s.opts.TTL, as, joins)
}

func (e *Engine) arguments(args [4]string, ttl time.Duration, as, joins string) []string {
	if !e.cluster {
		return args[:]
	}
	return append(args[:], ms(cmp.Or(e.graceTTL, e.belief(), unknownTTL)), as, ms(ttl), joins)
}

func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// flag is a yes or no as the scripts want it.
func flag(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

// enterIn enters a claim in a cluster. Whether the session still lives is asked
// beside its first claim on a name.
func (s *session) enterIn(ctx context.Context, c *engine.Claim, wish string) Reply {
	for {
		m, joined := s.claims(c)
		home := make(chan error, 1)
		if joined {
			home <- nil
		} else {
			go func() { home <- s.atHome(ctx) }()
		}
		args := s.arguments([4]string{s.record(c, m.id), wish, s.keep, form(c)}, m.id, flag(!joined))
		r := s.engine.run(ctx, enter, s.engine.keys(c.Resource, m.id), args, s.engine.wait)
		err := <-home
		code, notCode := r.number()
		list, _ := r.Value.([]any)
		_, mismatch := r.Value.(string)
		switch {
		case r.Err != nil:
			return r
		case joined && notCode == nil && code == -1:
			s.part(c.Resource, m) // the node has lost it: a new one, which asks at home
			continue
		case notCode == nil && code < 0, mismatch, len(list) > 0 && list[0] == int64(-3): // refused
			s.left(c.Resource, c.ID)
		case err == nil && !s.joined(c.Resource, m):
			err = errParted
		}
		if err != nil {
			s.giveBack(ctx, c)
			r = Reply{Err: err}
		}
		return r
	}
}

var errParted = errors.New("the session ended in this slot meanwhile")

// joined notes that the slot knows a member, which renewals now have to find. joined
// reports whether they will.
func (s *session) joined(name string, m *member) bool {
	s.members.mu.Lock()
	defer s.members.mu.Unlock()
	m.joined = true
	return s.members.byName[name] == m
}

// atHome asks whether the session lives.
func (s *session) atHome(ctx context.Context) error {
	n, err := s.engine.do(ctx, read("EXISTS", s.key)).number()
	if err == nil && n == 0 {
		err = fmt.Errorf("session: %w", engine.ErrGone)
	}
	return err
}

func (s *session) renewInCluster(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	home := s.engine.ackedNow(ctx, command("PEXPIRE", s.key, ms(s.opts.TTL)), s.engine.wait)
	switch alive, err := home.number(); {
	case cmp.Or(err, home.short) != nil:
		return nil, cmp.Or(err, home.short)
	case alive == 0:
		return nil, engine.ErrGone
	}
	if err := s.renewMembers(ctx); err != nil {
		return nil, err
	}
	s.watch(held)
	if s.opts.Found != nil {
		s.find(ctx)
	}
	if gone, err = s.missing(ctx, held); err == nil {
		err = s.keepMark(ctx)
	}
	return gone, err
}

// keepMark keeps the mark of the cluster, and refuses the mark of another format. A slot that is away costs no lock, because
// keepMark comes last in a renewal and waits for a part of the time. The next renewal tries again.
func (s *session) keepMark(ctx context.Context) error {
	s.known.mu.Lock()
	due := time.Since(s.known.touched) > markStays/2
	s.known.mu.Unlock()
	if !due {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, s.opts.Heartbeat/4)
	defer stop()
	err := s.engine.mark(ctx, s.opts.TTL+markStays)
	if errors.Is(err, engine.ErrUnsupported) {
		return err
	}
	if err == nil {
		s.known.mu.Lock()
		s.known.touched = time.Now()
		s.known.mu.Unlock()
	}
	return nil
}

// find reports claims that came back with old data where this session has others, whose member keeps
// both alive. A look reads a part of many claims, and the next renewal goes on. A name that does not
// answer is asked again by the next renewals.
func (s *session) find(ctx context.Context) {
	var names []string
	var members []*member
	var cmds []Command
	s.members.mu.Lock()
	for name, m := range s.members.byName {
		if time.Now().Before(m.until) {
			names, members = append(names, name), append(members, m)
			cmds = append(cmds, s.look(name, cmp.Or(m.looked, "0"), "100"))
		}
	}
	s.members.mu.Unlock()
	for i, r := range s.engine.client.Pipeline(ctx, cmds) {
		is, _ := r.Value.([]any)
		for n, one := range is {
			text, _ := one.(string)
			switch {
			case n == 0:
				s.members.mu.Lock()
				members[i].looked = text
				s.members.mu.Unlock()
			case !s.may(names[i], text):
				s.opts.Found(names[i], text)
			}
		}
	}
}

// may reports whether the session may have a claim.
func (s *session) may(name, claim string) bool {
	s.members.mu.Lock()
	defer s.members.mu.Unlock()
	m := s.members.byName[name]
	return m != nil && m.claims[claim]
}

// markStays is how long the mark of a cluster outlives the last session.
const markStays = time.Minute

// mark refuses a cluster where clients of another format live, and keeps the mark of our format there for some time.
func (e *Engine) mark(ctx context.Context, stays time.Duration) error {
	found, err := answer[string](e.do(ctx, eval(markLua, []string{e.prefix + "format"}, engine.Format(), ms(stays))))
	if err == nil {
		err = engine.CheckFormat(found)
	}
	if err == nil {
		e.looked.Store(time.Now().Unix())
	}
	return err
}

// lookAtMark looks at the mark of a cluster, unless the engine has done so in the time for which that mark stays. On a single server each
// script looks.
func (e *Engine) lookAtMark(ctx context.Context) error {
	if !e.cluster || time.Now().Unix()-e.looked.Load() < int64(markStays/time.Second) {
		return nil
	}
	return e.mark(ctx, 0)
}

// refuseEviction asks each node of a cluster, once, whether it deletes keys by itself.
func (e *Engine) refuseEviction(ctx context.Context) error {
	if e.asked.Load() {
		return nil
	}
	nodes, err := e.servers(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		info, err := answer[string](node.Do(ctx, command("INFO", "", "memory")))
		if err = cmp.Or(err, evicts(info)); err != nil {
			return err
		}
	}
	e.asked.Store(true)
	return nil
}

// renewMembers proves that the session lives wherever it may have claims, and
// forgets where it has none. A member that is about to join is tried as well, because
// it may have joined by now with an old time.
func (s *session) renewMembers(ctx context.Context) error {
	var names []string
	var members []*member
	var known []bool // whether the slot knew the member before
	var cmds []Command
	s.members.mu.Lock()
	for name, m := range s.members.byName {
		if len(m.claims) == 0 {
			delete(s.members.byName, name)
			continue
		}
		keys := s.engine.keys(name, m.id)
		names, members, known = append(names, name), append(members, m), append(known, m.joined)
		// A full node refuses nothing of a script whose first write needs no memory.
		cmds = append(cmds, eval("redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 0)\n"+memberLua, []string{keys[3], keys[6]}, m.id, ms(s.opts.TTL), "0"))
	}
	s.members.mu.Unlock()
	for i, r := range s.engine.ackedEach(ctx, cmds) {
		n, err := r.number()
		if err = cmp.Or(err, r.short); err != nil {
			return err
		}
		if n == 0 && known[i] { // its claims are found gone
			s.part(names[i], members[i])
		}
	}
	return nil
}

// farewell are the commands that end the session in the store, besides its claims.
func (s *session) farewell() []Command {
	cmds := []Command{command("DEL", s.key)}
	if !s.engine.cluster {
		return append(cmds, command("ZREM", s.engine.sessions, s.id))
	}
	s.members.mu.Lock()
	defer s.members.mu.Unlock()
	for name, m := range s.members.byName {
		keys := s.engine.keys(name, m.id)
		cmds = append(cmds, command("DEL", keys[6]), command("ZREM", keys[3], m.id))
	}
	return cmds
}

// servers returns the servers that keep names.
func (e *Engine) servers(ctx context.Context) ([]Client, error) {
	if !e.cluster {
		return []Client{e.client}, nil
	}
	nodes, err := e.client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var masters []Client
	for addr, node := range nodes {
		role, err := node.Do(ctx, command("ROLE", "")).list()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", addr, err)
		}
		if len(role) > 0 && role[0] == "master" {
			masters = append(masters, node)
		}
	}
	return masters, nil
}

// do sends a command to where its keys are.
func (e *Engine) do(ctx context.Context, cmd Command) Reply {
	reply := e.client.Do(ctx, cmd)
	if e.cluster && reply.Err != nil {
		return e.follow(ctx, []Reply{reply}, []Command{cmd})[0]
	}
	return reply
}

// follow sends commands to where a server says that the keys of the first one are: all
// of them, over one connection again.
func (e *Engine) follow(ctx context.Context, replies []Reply, cmds []Command) []Reply {
	for range 3 {
		asks := replies[0].says("ASK ")
		if !asks && !replies[0].says("MOVED ") {
			return replies
		}
		nodes, err := e.client.Nodes(ctx)
		node := nodes[addressIn(replies[0].Err.Error())]
		switch {
		case err != nil || node == nil:
			return replies
		case asks:
			replies = node.Together(ctx, slices.Concat([]Command{command("ASKING", "")}, cmds))[1:]
		default:
			replies = node.Together(ctx, cmds)
		}
	}
	return replies
}

// addressIn returns the address at the end of a redirection, in the usual form.
func addressIn(redirection string) string {
	addr := redirection[strings.LastIndexByte(redirection, ' ')+1:]
	colon := strings.LastIndexByte(addr, ':')
	return net.JoinHostPort(strings.Trim(addr[:max(colon, 0)], "[]"), addr[colon+1:])
}

// sessionOf returns the session that is known by this id in the slot of a name.
func sessionOf(member string) string {
	id, _, _ := strings.Cut(member, ":")
	return id
}
