package etcdengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"google.golang.org/grpc/peer"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/lines"
	"github.com/pawl-go/pawl/internal/turn"
)

type session struct {
	engine *Engine
	id     string
	lease  clientv3.LeaseID
	opts   engine.SessionOptions

	mu      sync.Mutex
	places  map[string]*place    // by claim id, from Enter to Leave
	last    map[string]*place    // the last claim of all of a resource, by dir
	slots   int                  // how many were ever in use at once
	free    []int                // the unused ones
	tombs   []tomb               // that are in the store
	buried  map[string]bool      // the claims, by id, that a tomb keeps out
	waiting map[*place]turn.Bell // the calls of Await, to be woken
	rest    context.CancelFunc   // ends lookOut

	crowded atomic.Bool // the last claim that entered met others

	conns   map[string]string // the address here of that to each member
	strange atomic.Bool       // the store may have claims that we left
}

// meets notes over which connection a member was asked. If that is another one than before,
// the cluster may have been restored meanwhile, because that takes a restart of every member.
func (s *session) meets(conn *peer.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	member, is := fmt.Sprint(conn.Addr), fmt.Sprint(conn.LocalAddr)
	if was, met := s.conns[member]; met && was != is {
		s.strange.Store(true)
	}
	s.conns[member] = is
}

// tomb is the key that keeps a claim out which left while a request for it was in doubt. A
// request is served within a TTL or never. The root would leave such a claim at its next
// heartbeat only. Until then the claim would hold a name for nobody, because in etcd a key holds
// as soon as it is there. A member that hangs for long sends on all late requests when it is
// well.
type tomb struct {
	claim, key string
	since      time.Time
}

func (s *session) ID() string { return s.id }

// place is where a claim of this session is kept.
type place struct {
	base, dir     string // of all claims of the resource; of the claims with this spec
	queue, grants string // the keys that the claim may have
	tomb          string // the key that keeps it out
	marks, mark   string // the prefix of all marks; its own mark, if it has one
	put           stored // in the store
	slot          int
	again         bool // it was asked for before, and may have a key already
	buried        bool // it is not of this session any more, and a tomb keeps it out

	// Guarded by the session's mutex, as Leave may be called at any time.
	key     string  // of the claim, as far as was seen
	rev     int64   // its create revision
	blocker blocker // while it waits
	marked  bool    // it may have its mark
	doubts  int     // how many requests for it are under way or were given up
}

func (s *session) place(c *engine.Claim, slot int) *place {
	p := &place{base: s.engine.base(c.Resource), slot: slot}
	p.put = stored{Note: lines.NoteOf(c, s.id), Weight: c.Weight}
	p.dir = p.base + fmt.Sprintf(specFormat, c.Capacity, c.Barging, c.Kind) + "/"
	key := fmt.Sprintf("%x.%d", s.lease, slot)
	p.queue, p.grants, p.tomb, p.marks = p.dir+"q/"+key, p.dir+"g/"+key, s.engine.prefix+"x/"+key, s.engine.prefix+"w/"
	if lines.Tells(c.Spec, c.Weight) {
		p.mark = p.marks + key
	}
	return p
}

// base is what the keys of a resource start with. Names are escaped byte by byte, so that none
// has a slash, and a prefix of a name is a prefix of its keys.
func (e *Engine) base(resource string) string {
	return e.prefix + "c/" + url.PathEscape(resource) + "/"
}

// take returns the place of a claim that enters. The place's keys are named by lease and slot, not by
// claim, and used again. etcd remembers every key until it is compacted, and a read of a range
// walks over all of them. The slot of a claim in doubt is never used again.
func (s *session) take(c *engine.Claim) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[c.ID]; p != nil {
		p.again, p.rev = true, 0
		p.doubts++
		return p
	}
	slot := s.slots
	if last := len(s.free) - 1; last >= 0 {
		slot, s.free = s.free[last], s.free[:last]
	} else {
		s.slots++
	}
	p := s.place(c, slot)
	p.doubts = 1
	s.places[c.ID] = p
	return p
}

// drop forgets a claim that is not in the store. The slot is used again if no
// more requests are in doubt than the caller knows how they ended.
func (s *session) drop(claim string, known int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.places[claim]
	if p != nil && p.doubts == known {
		s.free = append(s.free, p.slot)
	}
	if p != nil && s.last[p.dir] == p {
		delete(s.last, p.dir)
	}
	delete(s.places, claim)
}

// find returns a copy of the place of a claim, which has no keys if the claim is not of this session. find adds
// to the doubts of the claim.
func (s *session) find(claim string, doubts int) place {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.places[claim]
	if p == nil {
		return place{buried: s.buried[claim]}
	}
	was := *p
	p.doubts += doubts
	return was
}

// note writes down where a claim was found, and its blocker.
func (s *session) note(p *place, key string, rev int64, blocker blocker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.key, p.rev, p.blocker = key, rev, blocker
}

// mayEnter compares that nobody uses the resource as something else, that the claim has not left,
// and that no key is there. A request that was given up may be served after another request of the
// claim. After a restore an earlier claim may have the key.
func (p *place) mayEnter() []clientv3.Cmp {
	after := clientv3.GetPrefixRangeEnd(p.dir)
	others := []clientv3.Cmp{absent(p.base).WithRange(p.dir), absent(after).WithRange(clientv3.GetPrefixRangeEnd(p.base))}
	return append(others, absent(p.tomb), absent(p.queue), absent(p.grants))
}

// view reads the claims of the resource on which a claim depends. A barging claim looks at
// grants, and at the waiter before it. A claim that weighs all, and has no owner who may be
// ahead, needs only to know whether anybody is. Two claims of a long queue are enough for both,
// once its own place there is known or it is the last.
func (p *place) view(c *engine.Claim, how ...clientv3.OpOption) []clientv3.Op {
	inQueue := append(how, clientv3.WithPrefix())
	grants := clientv3.OpGet(p.dir+"g/", inQueue...)
	if p.rev != 0 {
		inQueue = append(inQueue, clientv3.WithMaxCreateRev(p.rev))
	}
	if (c.Barging || c.Weight == c.Capacity && alone(c)) && (p.rev != 0 || !p.again) {
		inQueue = append(inQueue, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2))
	}
	return []clientv3.Op{grants, clientv3.OpGet(p.dir+"q/", inQueue...)}
}

// again asks for a claim that was told to wait, and whose Await failed. After an outage all waiters do so at once. So
// again reads no queue while the claim and its blocker stand. again reports whether the claim is there.
func (s *session) again(ctx context.Context, c *engine.Claim) (grant engine.Grant, there bool, err error) {
	s.mu.Lock()
	p := s.places[c.ID]
	there = p != nil && p.doubts == 0 && p.rev != 0
	s.mu.Unlock()
	if !there {
		return grant, false, nil
	}
	event := int64(0)
	if c.Barging { // the claim may overtake its blocker: the holders count, as a member knows them that knows the claim
		event = p.rev
	}
	l, err := s.look(ctx, c, p, event)
	if err == nil && l != nil {
		if there = l.Find(c.ID) != nil; there {
			grant, err = s.pursue(ctx, "enter", c, p, l, true)
		}
	}
	return grant, there, err
}

// Enter takes one round trip if nobody claims the resource.
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	if wait {
		if grant, there, err := s.again(ctx, c); there {
			return grant, err
		}
	}
	p := s.take(c)
	grant, err := s.enter(ctx, c, p, wait)
	if err == nil && !grant.Held() && !wait { // it was asked again, and waits
		err = fmt.Errorf("enter: %w", engine.ErrBusy)
	}
	switch {
	case err == nil:
		s.find(c.ID, -1)
		s.mu.Lock()
		if last := s.last[p.dir]; c.Weight == c.Capacity && alone(c) && (last == nil || last.rev < p.rev) {
			s.last[p.dir] = p
		}
		s.mu.Unlock()
	case !errors.Is(err, engine.ErrBusy) && !errors.Is(err, engine.ErrMismatch): // it may come late
	case p.again: // it is stored, perhaps
		if leave := s.Leave(ctx, c.Resource, c.ID); leave != nil && !errors.Is(leave, engine.ErrGone) {
			err = leave
		}
	default:
		s.drop(c.ID, 1)
	}
	return grant, err
}

// enter takes a resource that nobody claims, in a request that is as small as
// it can be; else it looks who does.
func (s *session) enter(ctx context.Context, c *engine.Claim, p *place, wait bool) (engine.Grant, error) {
	if wait && alone(c) && s.crowded.Load() { // append it, in one request, instead of asking first
		if ahead := s.ahead(p); ahead.rev != 0 && !p.again && p.mark == "" {
			return s.follow(ctx, c, p, ahead)
		}
		grant, err := s.pursue(ctx, "enter", c, p, &line{}, wait)
		s.crowded.Store(!grant.Held())
		return grant, err
	}
	m, nobody := &move{put: p.put, key: p.queue}, []clientv3.Cmp{absent(p.base).WithPrefix(), absent(p.tomb)}
	if c.Barging {
		m.key = p.grants
	}
	reply, err := s.engine.commit(ctx, "enter", nobody, s.ops(p, m, nil), p.view(c))
	if err != nil {
		return engine.Grant{}, err
	}
	if reply.Succeeded {
		s.note(p, m.key, reply.Header.Revision, blocker{})
		return engine.Grant{Token: fence.Token(reply.Header.Revision)}, nil
	}
	s.crowded.Store(true)
	return s.pursue(ctx, "enter", c, p, newLine(reply), wait)
}

// ahead returns a claim of this session that has to go before a claim that enters now.
func (s *session) ahead(p *place) blocker {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.last[p.dir]; last != nil && last.key == last.queue {
		return blocker{last.key, last.rev}
	}
	return blocker{}
}

// follow appends a claim behind another claim that has to go first. So there is no need to read
// the queue, which takes etcd the longer the more wait, while it does nothing else.
func (s *session) follow(ctx context.Context, c *engine.Claim, p *place, ahead blocker) (engine.Grant, error) {
	m, err := (&line{}).next(c, p, nil, true)
	if err != nil {
		return engine.Grant{}, err
	}
	guards := append(m.guards, stands(ahead.key, ahead.rev))
	reply, err := s.engine.commit(ctx, "enter", guards, s.ops(p, m, nil), everything(p.base))
	switch {
	case err != nil:
		return engine.Grant{}, err
	case !reply.Succeeded:
		return s.pursue(ctx, "enter", c, p, newLine(reply), true)
	}
	s.note(p, m.key, reply.Header.Revision, ahead)
	return engine.Grant{}, nil
}

// pursue takes moves until the claim holds, waits, is refused or is no longer
// there. A move fails when others came, and always after the claim has left.
func (s *session) pursue(ctx context.Context, doing string, c *engine.Claim, p *place, l *line, wait bool) (engine.Grant, error) {
	for range 1000 {
		own := l.Find(c.ID)
		if own == nil && p.rev != 0 { // as Await sees by that
			s.note(p, p.key, 0, blocker{})
			return engine.Grant{}, nil
		}
		m, err := l.next(c, p, own, wait)
		if err != nil {
			return engine.Grant{}, fmt.Errorf("%s: %w", doing, err)
		}
		if own != nil {
			s.note(p, own.Node.key, own.Node.rev, l.blocker(p, own))
		}
		if m == nil {
			return s.settled(ctx, doing, p, own)
		}
		otherwise := p.view(c)
		if own == nil { // it may be there all the same, or others that use the resource as something else
			otherwise = everything(p.base)
		}
		reply, err := s.engine.commit(ctx, doing, m.guards, append(s.ops(p, m, own), p.view(c)...), otherwise)
		if err != nil {
			return engine.Grant{}, err
		}
		l = newLine(reply)
	}
	return engine.Grant{}, engine.Unavailable(doing, errors.New("others come all the time, or it has left"))
}

// settled is what a claim is whose place is known. A claim that holds by now takes its mark away,
// which tells the next waiter. (A deletion also works when the store is full.) A late deletion
// spares the mark of a later claim.
func (s *session) settled(ctx context.Context, doing string, p *place, own *claim) (engine.Grant, error) {
	s.mu.Lock()
	marked := p.marked
	s.mu.Unlock()
	if own.Holds && marked {
		if _, err := s.engine.commit(ctx, doing, []clientv3.Cmp{stands(own.Node.key, own.Node.rev)}, []clientv3.Op{clientv3.OpDelete(p.mark)}, nil); err != nil {
			return engine.Grant{}, err
		}
		s.mu.Lock()
		p.marked = false
		s.mu.Unlock()
	}
	return engine.Grant{Token: fence.Token(own.Grant())}, nil
}

// ops does a move, of a claim that is stored already or not.
func (s *session) ops(p *place, m *move, own *claim) []clientv3.Op {
	text, _ := json.Marshal(m.put) // strings and integers can be marshalled
	ops := []clientv3.Op{clientv3.OpPut(m.key, string(text), clientv3.WithLease(s.lease))}
	if own != nil && own.Node.key != m.key {
		ops = append(ops, clientv3.OpDelete(own.Node.key))
	}
	if m.waits && p.mark != "" {
		s.mu.Lock()
		p.marked = true
		s.mu.Unlock()
		ops = append(ops, clientv3.OpPut(p.mark, "", clientv3.WithLease(s.lease)))
	}
	return ops
}

// Leave takes one request, or two for a claim that this session does not know. A buried claim takes none.
func (s *session) Leave(ctx context.Context, resource, claim string) error {
	p := s.find(claim, 1)
	switch {
	case p.buried: // the root leaves it again with each heartbeat of a TTL
		return fmt.Errorf("leave: %w", engine.ErrGone)
	case p.doubts > 0:
		return s.leaveInDoubt(ctx, claim, p)
	case p.key != "":
		reply, err := s.engine.commit(ctx, "leave", nil, s.engine.removal(p.key, p.marked), nil)
		if err != nil {
			return err
		}
		if reply.Responses[0].GetResponseDeleteRange().Deleted > 0 {
			s.drop(claim, 1)
			return nil
		}
	}
	err := s.engine.seek(ctx, "leave", resource, claim)
	if err == nil || errors.Is(err, engine.ErrGone) {
		s.drop(claim, 1)
	}
	return err
}

// seek removes a claim wherever it is.
func (e *Engine) seek(ctx context.Context, doing, resource, claim string) error {
	for {
		l, err := e.read(ctx, doing, resource)
		if err != nil {
			return err
		}
		is := l.Find(claim)
		if is == nil {
			return fmt.Errorf("%s: %w", doing, engine.ErrGone)
		}
		reply, err := e.commit(ctx, doing, []clientv3.Cmp{stands(is.Node.key, is.Node.rev)}, e.removal(is.Node.key, lines.Tells(l.Spec, is.Weight)), nil)
		if err != nil || reply.Succeeded {
			return err
		}
	}
}

// removal deletes the key of a claim, and the mark that it may have.
func (e *Engine) removal(key string, marked bool) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpDelete(key)}
	if marked {
		ops = append(ops, clientv3.OpDelete(e.prefix+"w/"+slotOf(key)))
	}
	return ops
}

// leaveInDoubt leaves wherever the claim may be. leaveInDoubt keeps the claim out for a TTL, because a
// request that was given up may still be on its way. A store that is full takes deletions only,
// and nothing that comes late.
func (s *session) leaveInDoubt(ctx context.Context, claim string, p place) error {
	remove := append(s.engine.removal(p.queue, p.mark != ""), clientv3.OpDelete(p.grants))
	bury := append(slices.Clip(remove), clientv3.OpPut(p.tomb, "", clientv3.WithLease(s.lease)))
	reply, err := s.engine.commit(ctx, "leave", nil, bury, nil)
	buried := err == nil
	if errors.Is(err, rpctypes.ErrNoSpace) {
		reply, err = s.engine.commit(ctx, "leave", nil, remove, nil)
	}
	if err != nil {
		return err
	}
	if buried {
		s.mu.Lock()
		s.tombs = append(s.tombs, tomb{claim, p.tomb, time.Now()})
		s.buried[claim] = true
		s.mu.Unlock()
	}
	s.drop(claim, 0)
	last := reply.Responses[len(remove)-1].GetResponseDeleteRange().Deleted
	if reply.Responses[0].GetResponseDeleteRange().Deleted+last == 0 {
		return fmt.Errorf("leave: %w", engine.ErrGone)
	}
	return nil
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	_, err := s.engine.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(s.lease)})
	if err == nil || errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return failed(ctx, "close session", err)
}
