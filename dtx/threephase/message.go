package threephase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

const (
	version    = 1       // of messages
	maxPayload = 1 << 20 // of an agent
	maxMessage = 2 << 20 // a payload in base64, and the rest
	maxWhy     = 300     // of the reason of an abort
)

// envelope is a message between agents, in JSON.
type envelope struct {
	Version  int               `json:"version"`
	From     string            `json:"from"`
	Log      int64             `json:"log"`          // of the sender
	Mark     int64             `json:"mark"`         // of the sender
	To       int64             `json:"to"`           // the log of the receiver, as the sender knows it; 0: not known
	Group    string            `json:"group"`        // mode and names of all agents
	ID       string            `json:"id,omitempty"` // empty: the message tells the mark only
	Kind     protocol.Kind     `json:"kind"`
	Election protocol.Election `json:"election,omitempty"`
	Phase    protocol.Phase    `json:"phase,omitempty"`
	Attempt  protocol.Election `json:"attempt,omitempty"`
	Work     bool              `json:"work,omitempty"` // of CanCommit: there is a payload
	Payload  []byte            `json:"payload,omitempty"`
	Why      string            `json:"why,omitempty"` // of Abort: the reason
}

// reply answers a message. Done says that the agent has finished the transaction.
type reply struct {
	Agent string `json:"agent"`
	Log   int64  `json:"log"`
	Mark  int64  `json:"mark"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

// ServeHTTP takes a message of a peer: a POST to any path. Messages of other groups, of unknown agents and of agents that have lost their logs are
// refused with status 403, and malformed messages with 400. A browser's message is refused with 403, too. 503 says that the log failed, so
// the peer sends the message again.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, answer := http.StatusOK, reply{Agent: a.name, Log: a.log.identity}
	e, err := read(w, r)
	if err == nil {
		err = a.check(r, e)
	}
	if err == nil {
		answer.Done, err = a.receive(r.Context(), e)
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrForeign), errors.Is(err, ErrReplaced):
		status = http.StatusForbidden
	case errors.Is(err, pawl.ErrInvalid):
		status = http.StatusBadRequest
	default:
		status = http.StatusServiceUnavailable
	}
	if err != nil {
		answer.Error = err.Error()
	}
	a.mu.Lock()
	answer.Mark = a.mark
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer) //nolint:errcheck // the peer sends the message again
}

func read(w http.ResponseWriter, r *http.Request) (e envelope, err error) {
	if r.Method != http.MethodPost {
		return e, fmt.Errorf("%w: the method is %s: POST is allowed", pawl.ErrInvalid, r.Method)
	}
	if r.Header.Get("Origin") != "" { // a web page of a machine that reaches the agent
		return e, fmt.Errorf("%w: a browser has sent the message", ErrForeign)
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(&e); err != nil {
		return e, fmt.Errorf("%w: the message cannot be read: %w", pawl.ErrInvalid, err)
	}
	if e.Version != version {
		return e, fmt.Errorf("%w: the message has version %d, and this version of pawl knows %d", ErrForeign, e.Version, version)
	}
	return e, nil
}

// check refuses a message that no agent of this group sends to this one.
func (a *Agent) check(r *http.Request, e envelope) error {
	a.mu.Lock()
	known, closed := a.peers[e.From] != nil, a.closed
	a.mu.Unlock()
	switch {
	case closed || a.ctx.Err() != nil:
		return pawl.ErrClosed
	case !known:
		return fmt.Errorf("%w: agent %s knows no agent %.40q", ErrForeign, a.name, e.From)
	case e.Group != a.group:
		return fmt.Errorf("%w: agent %s is of the group %q, and agent %s of %.200q", ErrForeign, a.name, a.group, e.From, e.Group)
	}
	if e.To != 0 && e.To != a.log.identity { // so this agent has forgotten its votes
		return fmt.Errorf("%w: the message is for the log %x of agent %s, which is lost, and its log is %x now (see Log.Trust)", ErrReplaced, e.To, a.name, a.log.identity)
	}
	if a.opts.Authenticate != nil {
		if err := a.opts.Authenticate(r, e.From); err != nil {
			return fmt.Errorf("%w: the sender is not agent %s: %w", ErrForeign, e.From, err)
		}
	}
	return a.hear(e.From, e.Log, e.Mark)
}

// hear keeps what a peer tells of its log. A peer with another log than before has forgotten its votes.
func (a *Agent) hear(name string, log, mark int64) error {
	if log < 1 || log > maxLog || mark < 0 {
		return fmt.Errorf("%w: the log of agent %s is %d", pawl.ErrInvalid, name, log)
	}
	a.mu.Lock()
	p := a.peers[name]
	same := p.log == log
	if same {
		p.heard = max(p.heard, mark)
	}
	a.mu.Unlock()
	if same {
		return nil
	}
	a.learning.Lock()
	defer a.learning.Unlock()
	ctx, cancel := a.within()
	defer cancel()
	if err := a.log.learn(ctx, name, log); err != nil { // unless the log knows another
		a.note(err)
		return err
	}
	agents, err := a.log.known(ctx)
	if err != nil {
		return err
	}
	if agents[name].log != log {
		return fmt.Errorf("%w: agent %s has the log %x, and agent %s knows it with the log %x (see Log.Trust)", ErrReplaced, name, log, a.name, agents[name].log)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.known, p.heard = agents[name], mark
	return nil
}

// receive takes a message, and reports whether this agent has finished the transaction.
func (a *Agent) receive(ctx context.Context, e envelope) (done bool, err error) {
	if e.ID == "" {
		return false, nil
	}
	id, err := ParseID(e.ID)
	if err != nil {
		return false, err
	}
	if !slices.Contains(a.names, id.agent) {
		return false, fmt.Errorf("%w: transaction %v is of no agent of this group", ErrForeign, id)
	}
	m, err := message(order(a.names, id.agent), a.name, e)
	if err != nil {
		return false, err
	}
	t, over, err := a.find(id, e.Kind)
	if err == nil && t == nil && !over && m.Kind == protocol.Commit {
		return a.lacks(id)
	}
	if err != nil || t == nil {
		return over, err
	}
	if m.Kind == protocol.CanCommit {
		return false, a.vote(t, e.Payload, e.Work)
	}
	t.mu.Lock()
	if m.Kind == protocol.Abort && e.Why != "" && t.reason == nil {
		t.reason = fmt.Errorf("agent %s: %.*s", e.From, maxWhy, e.Why)
	}
	err = a.take(t, m)
	final := t.state.Phase.Final()
	t.mu.Unlock()
	if err != nil || !final || m.Kind != protocol.Commit && m.Kind != protocol.Abort {
		return false, err
	}
	wait := time.NewTimer(a.opts.Timeout / 4)
	defer wait.Stop()
	select {
	case <-t.done:
		return true, nil
	case <-wait.C:
	case <-ctx.Done():
	case <-a.ctx.Done():
	}
	return false, nil
}

// lacks reports whether this agent has no work of a transaction that is committed, and that its log does not have. A commit needs the votes
// of all agents, so this agent has voted yes, and has lost its log. The work is prepared until an operator has decided. Or another process has the
// log, and has voted.
func (a *Agent) lacks(id ID) (bool, error) {
	ctx, cancel := a.within()
	defer cancel()
	if err := a.log.mine(ctx); err != nil {
		a.note(err)
		return false, err
	}
	if a.handler == nil {
		return true, nil
	}
	prepared, err := a.handler.Prepared(ctx)
	return err == nil && !slices.Contains(prepared, id), err
}

// find returns the transaction of a message. Over says that the transaction is over and forgotten.
func (a *Agent) find(id ID, kind protocol.Kind) (t *transaction, over bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.all[id]; t != nil {
		return t, false, nil
	}
	p := a.peers[id.agent]
	switch {
	case a.forgot(id):
		return nil, true, nil
	case id.agent == a.name:
		return nil, false, fmt.Errorf("%w: agent %s has no transaction %v in its log", ErrForeign, a.name, id)
	case p.log != 0 && p.log != id.log:
		return nil, false, fmt.Errorf("%w: transaction %v is of a log that agent %s does not have", ErrForeign, id, id.agent)
	case kind != protocol.CanCommit && kind != protocol.Elect && kind != protocol.PreAbort && kind != protocol.Abort:
		return nil, false, nil // an agent that has not voted does nothing
	}
	t = a.resume(row{id: id, agents: a.group})
	t.waits = t.began.Add(a.patience(t.state))
	a.all[id] = t
	return t, false, nil
}

// message returns the event of an envelope, if the sender can send it to the receiver.
func message(names []string, to string, e envelope) (protocol.Message, error) {
	from, self, n := int8(slices.Index(names, e.From)), int8(slices.Index(names, to)), protocol.Election(len(names))
	owner := int8((e.Election - 1) % n) // of the election
	elected := e.Election > 0 && e.Election < 1<<30
	allowed := false
	switch e.Kind {
	case protocol.CanCommit:
		allowed = from == 0
	case protocol.Yes:
		allowed = self == 0
	case protocol.PreCommit, protocol.PreAbort, protocol.Elect:
		allowed = elected && owner == from
	case protocol.Ack:
		allowed = elected && owner == self
	case protocol.Joined:
		attempted := e.Phase == protocol.PreCommitted || e.Phase == protocol.PreAborted
		allowed = elected && owner == self && e.Attempt >= 0 && e.Attempt < e.Election && (attempted || e.Phase == protocol.Ready) && attempted == (e.Attempt > 0)
	case protocol.Commit, protocol.Abort:
		allowed = true
	}
	if !allowed || from < 0 {
		return protocol.Message{}, fmt.Errorf("%w: agent %s cannot send the message of kind %d and election %d", pawl.ErrInvalid, e.From, e.Kind, e.Election)
	}
	return protocol.Message{Kind: e.Kind, Peer: from, Election: e.Election, Phase: e.Phase, Attempt: e.Attempt}, nil
}

// forgot reports whether a transaction was over at all agents, and was forgotten. The caller holds a.mu.
func (a *Agent) forgot(id ID) bool {
	if id.agent == a.name {
		return id.log == a.log.identity && id.number < a.mark
	}
	p := a.peers[id.agent] // nil of work that an agent prepared that is of the group no more
	return p != nil && p.known.forgot(id)
}
