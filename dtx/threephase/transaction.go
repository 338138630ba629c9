package threephase

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// transaction is a transaction in which this agent takes part.
type transaction struct {
	id    ID
	group string
	names []string // of the agents, by their numbers in the protocol
	began time.Time

	mu        sync.Mutex // held by a step, which may wait for the log
	state     protocol.State
	waits     time.Time          // when the next time-out is due
	asked     bool               // the handler has been asked, or may be
	finished  bool               // the handler has carried the decision out, or had no work
	preparing chan struct{}      // closed when the handler has voted; nil if it was not asked by this process
	hurry     context.CancelFunc // ends the preparation
	payloads  map[string][]byte  // by agent, of the coordinator
	told      map[string]bool    // peers that have finished, of the coordinator
	tells     time.Time          // when the coordinator tells the decision again
	reason    error              // of an abort

	decided chan struct{} // closed when this agent knows the decision
	done    chan struct{} // closed when finished
	over    chan struct{} // closed when all agents have finished, of the coordinator
}

// stored is called when a record is in the log. Tests set it.
var stored = func(id ID, r protocol.Record, began time.Time) {}

// resume makes a transaction of its row, or of an empty one.
func (a *Agent) resume(r row) *transaction {
	names := order(strings.Split(r.agents, " ")[1:], r.id.agent)
	t := &transaction{id: r.id, group: r.agents, names: names, began: time.Now(), asked: r.asked, finished: r.finished,
		told: make(map[string]bool), decided: make(chan struct{}), done: make(chan struct{}), over: make(chan struct{})}
	t.state = protocol.New(protocol.Mode(a.opts.Mode), int8(slices.Index(names, a.name)), int8(len(names)), r.Record)
	t.waits = t.began.Add(rand.N(a.opts.Timeout/4 + 1))
	if t.state.Phase.Final() {
		close(t.decided)
	}
	if t.finished {
		close(t.done)
	}
	return t
}

// order returns the names by their numbers in the protocol: the coordinator is number 0.
func order(names []string, coordinator string) []string {
	others := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == coordinator })
	return append([]string{coordinator}, others...)
}

// row is the transaction as the log has it. The caller holds t.mu.
func (t *transaction) row() row {
	return row{id: t.id, Record: t.state.Record, asked: t.asked, finished: t.finished, agents: t.group}
}

// patience is how long an agent waits for the next event. Agents differ, so that one election comes before the others. The coordinator
// waits for votes less long than the others wait for the coordinator.
func (a *Agent) patience(s protocol.State) time.Duration {
	if s.Role == protocol.Voting || s.Phase == protocol.Initial && s.Self == 0 {
		return a.opts.Timeout
	}
	return a.opts.Timeout + rand.N(a.opts.Timeout/2+1)
}

// step gives an event to the protocol. The record is durable before the messages are sent. If the log fails, nothing has happened.
func (a *Agent) step(t *transaction, e protocol.Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return a.take(t, e)
}

// take is step for a caller that holds t.mu.
func (a *Agent) take(t *transaction, e protocol.Message) error {
	next, messages, decision := t.state.Step(e)
	finished := t.finished || decision != protocol.Undecided && !t.asked
	if next.Record != t.state.Record {
		r := t.row()
		r.Record, r.finished = next.Record, finished
		if err := a.put(r); err != nil {
			return err
		}
		stored(t.id, r.Record, t.began)
	}
	if next != t.state {
		t.waits = time.Now().Add(a.patience(next))
	}
	if e.Kind == protocol.TimeOut && decision == protocol.ToAbort && t.reason == nil {
		t.reason = t.silent()
	}
	t.state, t.finished = next, finished
	if decision != protocol.Undecided {
		t.payloads = nil
		close(t.decided)
		if t.finished {
			close(t.done)
		} else {
			a.spawn(func() { a.finish(t) })
		}
	}
	for _, m := range messages {
		a.send(t, m)
	}
	return nil
}

// silent names the agents whose votes stayed away.
func (t *transaction) silent() error {
	if t.state.Role != protocol.Voting {
		return errors.New("a time-out")
	}
	var names []string
	for i, name := range t.names {
		if t.state.Heard>>i&1 == 0 {
			names = append(names, name)
		}
	}
	return fmt.Errorf("no vote in time of: %s", strings.Join(names, ", "))
}

// put stores a row.
func (a *Agent) put(r row) error {
	ctx, cancel := a.within()
	defer cancel()
	err := a.log.put(ctx, r)
	a.note(err)
	return err
}

// note keeps an error for Status. An agent whose log another process has taken ends.
func (a *Agent) note(err error) {
	a.mu.Lock()
	if err != nil && !errors.Is(a.trouble, ErrReplaced) {
		a.trouble = err
	}
	a.mu.Unlock()
	if errors.Is(err, ErrReplaced) {
		a.stop(err)
	}
}

// vote asks the handler, if there is work for it, and takes the vote. The row is stored first, so no agent asks its handler twice: the database
// may still prepare the work of a process that died.
func (a *Agent) vote(t *transaction, payload []byte, work bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked || t.state.Phase != protocol.Initial {
		return a.take(t, protocol.Message{Kind: protocol.CanCommit, Peer: 0})
	}
	if !work {
		return a.take(t, protocol.Message{Kind: protocol.VoteYes, Peer: t.state.Self})
	}
	if a.handler == nil {
		t.reason = fmt.Errorf("%w: agent %s is a witness, and there is a payload for it", pawl.ErrInvalid, a.name)
		return a.take(t, protocol.Message{Kind: protocol.VoteNo, Peer: t.state.Self})
	}
	r := t.row()
	r.asked = true
	if err := a.put(r); err != nil {
		return err
	}
	t.asked = true
	ctx, cancel := a.within()
	t.preparing, t.hurry = make(chan struct{}), cancel
	preparing := t.preparing
	a.spawn(func() {
		defer cancel()
		err := a.handler.Prepare(ctx, t.id, payload)
		close(preparing)
		a.voted(t, err)
	})
	return nil
}

// voted takes the vote of the handler.
func (a *Agent) voted(t *transaction, failed error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kind := protocol.VoteYes
	if failed != nil {
		kind = protocol.VoteNo
		if t.reason == nil {
			t.reason = failed
		}
	}
	a.note(a.take(t, protocol.Message{Kind: kind, Peer: t.state.Self})) // if the log fails, a time-out follows
}

// finish lets the handler carry the decision out, until it has.
func (a *Agent) finish(t *transaction) {
	t.mu.Lock()
	commit, preparing, hurry := t.state.Phase == protocol.Committed, t.preparing, t.hurry
	t.mu.Unlock()
	if preparing != nil {
		hurry()
		select {
		case <-preparing:
		case <-a.ctx.Done():
			return
		}
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, a.opts.Timeout) {
		err := a.end(t.id, commit)
		if err == nil {
			err = a.finished(t)
		}
		if err == nil {
			break
		}
		if a.note(err); !pause(a.ctx, wait) {
			return
		}
	}
}

// end commits or aborts the work of the handler.
func (a *Agent) end(id ID, commit bool) error {
	ctx, cancel := a.within()
	defer cancel()
	if commit {
		return a.handler.Commit(ctx, id)
	}
	return a.handler.Abort(ctx, id)
}

// finished stores that the handler has finished.
func (a *Agent) finished(t *transaction) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.row()
	r.finished = true
	if err := a.put(r); err != nil {
		return err
	}
	t.finished = true
	close(t.done)
	a.judge(t)
	return nil
}

// judge closes over if all agents have finished. The caller holds t.mu.
func (a *Agent) judge(t *transaction) {
	if t.id.agent != a.name || !t.finished || len(t.told) < len(t.names)-1 {
		return
	}
	select {
	case <-t.over:
	default:
		close(t.over)
	}
}

// Commit asks all agents to do their work, and commits if all can. Payloads are by the names of agents, 1 MiB each at most. An agent without a
// payload has no work, and still votes.
//
// The error matches [dtx.ErrAborted], [dtx.ErrPending] or [dtx.ErrInDoubt], or [pawl.ErrInvalid] or [pawl.ErrClosed], after which nothing was begun.
// A transaction that the log did not take is aborted, and has the zero ID.
// Nil says that all handlers have committed. If ctx ends before all votes are there, the transaction aborts. After the votes, Commit waits for a decision
// until ctx ends or four time-outs have passed.
func (a *Agent) Commit(ctx context.Context, payloads map[string][]byte) (ID, error) {
	for name, payload := range payloads {
		switch {
		case !slices.Contains(a.names, name):
			return ID{}, fmt.Errorf("threephase: %w: a payload is for %.40q, and the agents are %s", pawl.ErrInvalid, name, strings.Join(a.names, ", "))
		case len(payload) > maxPayload:
			return ID{}, fmt.Errorf("threephase: %w: the payload for %s has %d bytes: at most %d are allowed", pawl.ErrInvalid, name, len(payload), maxPayload)
		}
	}
	t, err := a.begin(payloads)
	if err != nil {
		return ID{}, err
	}
	payload, work := payloads[a.name]
	if err := a.vote(t, payload, work); err != nil && !a.giveUp(t, err) {
		// No peer was asked, so the transaction can only abort. The log may not have the number, and another process may give it again.
		return ID{}, fmt.Errorf("threephase: %w: %w", dtx.ErrAborted, cmp.Or(context.Cause(a.ctx), err))
	}
	return t.id, a.await(ctx, t)
}

// begin makes a transaction.
func (a *Agent) begin(payloads map[string][]byte) (*transaction, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.ctx.Err() != nil {
		return nil, fmt.Errorf("threephase: %w: %w", pawl.ErrClosed, context.Cause(a.ctx))
	}
	a.last++
	t := a.resume(row{id: ID{a.name, a.log.identity, a.last}, agents: a.group})
	t.payloads = maps.Clone(payloads)
	t.waits = t.began.Add(a.patience(t.state))
	a.all[t.id] = t
	return t, nil
}

// giveUp aborts if votes are missing, and reports whether there is a decision.
func (a *Agent) giveUp(t *transaction, why error) (decided bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state.Phase == protocol.Initial || t.state.Role == protocol.Voting {
		if t.reason == nil {
			t.reason = why
		}
		a.note(a.take(t, protocol.Message{Kind: protocol.TimeOut, Peer: t.state.Self}))
	}
	return t.state.Phase.Final()
}

// await waits for the decision, and then for the handlers.
func (a *Agent) await(ctx context.Context, t *transaction) error {
	long := time.NewTimer(4 * a.opts.Timeout)
	defer long.Stop()
	select {
	case <-t.decided:
	case <-ctx.Done():
		a.giveUp(t, context.Cause(ctx))
	case <-a.ctx.Done():
	case <-long.C:
	}
	select {
	case <-t.decided:
	default:
		why := errors.New("no majority of agents answered")
		if cause := errors.Join(context.Cause(ctx), context.Cause(a.ctx)); cause != nil {
			why = cause
		}
		return &Error{t.id, fmt.Errorf("%w: %w", dtx.ErrInDoubt, why)}
	}
	t.mu.Lock()
	committed, reason := t.state.Phase == protocol.Committed, t.reason
	t.mu.Unlock()
	waits := t.done
	if committed {
		waits = t.over
	}
	settle := time.NewTimer(a.opts.Timeout)
	defer settle.Stop()
	select {
	case <-waits:
	case <-settle.C:
	case <-a.ctx.Done():
	}
	if !committed {
		if reason == nil {
			reason = errors.New("the agents elected to abort, or another agent did")
		}
		return &Error{t.id, fmt.Errorf("%w: %w", dtx.ErrAborted, reason)}
	}
	select {
	case <-waits:
		return nil
	default:
		return &Error{t.id, dtx.ErrPending}
	}
}
