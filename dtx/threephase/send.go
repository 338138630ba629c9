package threephase

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// send sends a message of a transaction in the background. The caller holds t.mu.
func (a *Agent) send(t *transaction, m protocol.Message) {
	decision := m.Kind == protocol.Commit || m.Kind == protocol.Abort
	if decision {
		t.tells = time.Now().Add(a.opts.Timeout)
	}
	for i, name := range t.names {
		if int8(i) == t.state.Self || m.Peer != protocol.All && m.Peer != int8(i) || decision && t.told[name] {
			continue
		}
		e := a.envelope(t, m, name)
		a.spawn(func() { a.deliver(t, name, e) })
	}
}

// envelope makes the message of a transaction to a peer. The caller holds t.mu.
func (a *Agent) envelope(t *transaction, m protocol.Message, name string) envelope {
	e := envelope{Version: version, From: a.name, Log: a.log.identity, Group: t.group, ID: t.id.String(),
		Kind: m.Kind, Election: m.Election, Phase: m.Phase, Attempt: m.Attempt}
	if m.Kind == protocol.CanCommit {
		e.Payload, e.Work = t.payloads[name]
	}
	if m.Kind == protocol.Abort && t.reason != nil {
		e.Why = fmt.Sprintf("%.*s", maxWhy, t.reason.Error())
	}
	return e
}

// tell tells a decision again to the peers that may not know it. A peer may have missed any number of decisions, so a peer that does not answer is told
// one at a time. Which one is left to chance, so no decision keeps the others back. The caller holds t.mu.
func (a *Agent) tell(t *transaction) {
	kind := protocol.Abort
	if t.state.Phase == protocol.Committed {
		kind = protocol.Commit
	}
	for _, name := range t.names[1:] { // the agent of number 0 tells
		if t.told[name] || !a.mayTell(name) {
			continue
		}
		t.tells = time.Now().Add(a.opts.Timeout)
		e := a.envelope(t, protocol.Message{Kind: kind}, name)
		a.spawn(func() {
			a.deliver(t, name, e)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.peers[name].telling--
		})
	}
}

// mayTell takes a place among the decisions that a peer is told again.
func (a *Agent) mayTell(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[name]
	if p.telling > 0 && p.err != nil || p.telling >= mostConns {
		return false
	}
	p.telling++
	return true
}

// deliver sends a message again until the peer has taken it, or a time-out has passed. Then the protocol does without the peer.
func (a *Agent) deliver(t *transaction, name string, e envelope) {
	ctx, cancel := a.within()
	defer cancel()
	for wait := a.opts.Timeout / 100; ; wait = min(2*wait, a.opts.Timeout/4) {
		got, err := a.post(ctx, name, &e)
		a.mu.Lock()
		a.peers[name].err = err
		a.mu.Unlock()
		if err == nil {
			if got.Done {
				a.heardDone(t, name)
			}
			return
		}
		if errors.Is(err, ErrForeign) || !pause(ctx, wait) {
			return
		}
	}
}

// heardDone notes that a peer has finished.
func (a *Agent) heardDone(t *transaction, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told[name] = true
	a.judge(t)
}

// post sends a message once. No error has the URL, which may have a secret.
func (a *Agent) post(ctx context.Context, name string, e *envelope) (got reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeout/2)
	defer cancel()
	a.mu.Lock()
	at := a.peers[name].url
	e.Mark, e.To = a.mark, a.peers[name].log
	a.mu.Unlock()
	body, err := json.Marshal(e)
	if err != nil {
		return got, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at, bytes.NewReader(body))
	if err != nil {
		return got, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.opts.Client.Do(request)
	if err != nil {
		for wrapped := (*url.Error)(nil); errors.As(err, &wrapped); {
			err = wrapped.Err
		}
		return got, err
	}
	defer response.Body.Close()
	err = json.NewDecoder(io.LimitReader(response.Body, 1<<16)).Decode(&got)
	switch {
	case err != nil:
		return got, fmt.Errorf("%w: the answer of the peer %s, with status %d, is of no agent: %w", ErrForeign, name, response.StatusCode, err)
	case got.Agent != name:
		return got, fmt.Errorf("%w: at the URL of agent %s is agent %.40q", ErrForeign, name, got.Agent)
	case response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusBadRequest:
		return got, fmt.Errorf("%w: agent %s refuses the message: %.500s", ErrForeign, name, got.Error)
	case response.StatusCode != http.StatusOK:
		return got, fmt.Errorf("agent %s failed: %.500s", name, got.Error)
	}
	a.mu.Lock()
	a.peers[name].told = max(a.peers[name].told, e.Mark)
	a.mu.Unlock()
	return got, a.hear(name, got.Log, got.Mark)
}

// greet tells the mark to the peers that do not know it. Other messages tell it too.
func (a *Agent) greet(ctx context.Context) {
	var all sync.WaitGroup
	for name := range a.peers {
		a.mu.Lock()
		p := a.peers[name]
		late := p.told < a.mark
		a.mu.Unlock()
		if late {
			all.Go(func() {
				_, err := a.post(ctx, name, &envelope{Version: version, From: a.name, Log: a.log.identity, Group: a.group})
				a.mu.Lock()
				defer a.mu.Unlock()
				p.err = err
			})
		}
	}
	all.Wait()
}
