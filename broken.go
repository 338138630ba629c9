package pawl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// Broken is the note that [Client.Break] leaves. The next Break of the name overwrites it.
type Broken struct {
	Label  string      `json:"label"`            // of the operator
	Reason string      `json:"reason,omitempty"` // as the operator said it
	Claim  string      `json:"claim,omitempty"`  // of the evicted party; "": the break evicted holders
	Token  fence.Token `json:"token"`            // of the newest evicted holder
	All    bool        `json:"all,omitempty"`    // all holders up to that token were evicted
}

// String gives the operator and the reason.
func (b *Broken) String() string {
	if b.Reason == "" {
		return "broken by " + b.Label
	}
	return "broken by " + b.Label + ": " + b.Reason
}

// of reports whether the note is about this claim.
func (b *Broken) of(claim string, token fence.Token) bool {
	switch {
	case b.Claim != "":
		return b.Claim == claim
	case b.All:
		return token != 0 && token <= b.Token
	}
	return token != 0 && token == b.Token
}

func brokenKey(name string) string { return scopedName("broken", name) }

// noteTries is how often a note is written again when other operators break the same name at the
// same time.
const noteTries = 16

// note stores the name of the operator who breaks a lock, where the store has values.
func (c *Client) note(ctx context.Context, name string, b *Broken) error {
	if c.caps.RefuseFeature(engine.FeatureValues) != nil {
		return nil
	}
	data, err := json.Marshal(b)
	for range noteTries {
		if err != nil {
			break
		}
		err = c.ask(ctx, "note", func(ctx context.Context) error {
			v, err := c.values.Get(ctx, brokenKey(name))
			if err == nil {
				_, err = c.values.Put(ctx, brokenKey(name), data, v.Version)
			}
			return err
		})
		if !errors.Is(err, engine.ErrConflict) {
			break
		}
		err = nil
	}
	if err != nil {
		return fmt.Errorf("the break could not be noted in the store: %w", err)
	}
	return nil
}

// broken reads the note of the last Break of a name; nil: there is none.
func (c *Client) broken(ctx context.Context, name string) (*Broken, error) {
	if c.caps.RefuseFeature(engine.FeatureValues) != nil {
		return nil, nil
	}
	v, err := c.stored(ctx, brokenKey(name))
	if err != nil || v.Version == 0 || len(v.Data) == 0 {
		return nil, err
	}
	var b Broken
	if json.Unmarshal(v.Data, &b) != nil { // the note is for people: a strange note is no reason to fail
		return nil, nil
	}
	return &b, nil
}

// taken is the cause when a claim is gone that the client did not leave. The cause is there at
// once, so that the holder stops; meanwhile a goroutine reads the operator's note.
type taken struct {
	how   string
	until time.Time     // then the text waits for the note no longer
	read  chan struct{} // closed when the note was read, or could not be
	note  *Broken       // nil: no operator has noted a break of this claim
}

func (e *taken) Error() string { return e.text(nil) }

// text waits a little for the note, because a program that prints the error wants the note. The end of bound ends that wait.
func (e *taken) text(bound <-chan struct{}) string {
	timer := time.NewTimer(time.Until(e.until))
	defer timer.Stop()
	select {
	case <-e.read:
	case <-timer.C:
	case <-bound:
	}
	select {
	case <-e.read: // perhaps long ago
		if e.note != nil {
			return ErrLost.Error() + ": " + e.note.String()
		}
	default:
	}
	return ErrLost.Error() + ": " + e.how
}

func (e *taken) Unwrap() error { return ErrLost }

// retold is a loss as a call tells of it. The text waits for the note no longer than the call.
type retold struct {
	*taken
	bound <-chan struct{}
}

func (r retold) Error() string { return r.text(r.bound) }
func (r retold) Unwrap() error { return r.taken }

// notesRead bounds how many notes are read when many names are lost at once. A store that forgets
// loses many names, an operator breaks few.
const notesRead = 16

// takenCause is the cause of a lease that ends because the store no longer has its claim.
func (s *session) takenCause(how string, claim *engine.Claim, token fence.Token) *taken {
	e := &taken{how: how, until: time.Now().Add(farewellTime), read: make(chan struct{})}
	reading := s.client.spawn(func() {
		defer close(e.read)
		note, err := s.client.broken(s.client.life, claim.Resource)
		if err == nil && note != nil && note.of(claim.ID, token) {
			e.note = note
		}
	})
	if !reading {
		close(e.read)
	}
	return e
}

// spawn starts a goroutine that Close awaits, unless the client is closed.
func (c *Client) spawn(run func()) bool {
	if !c.begin() {
		return false
	}
	defer c.tasks.Done()
	c.tasks.Go(run)
	return true
}

// begin lets Close await the caller until tasks.Done, unless the client is closed. Meanwhile the caller may start
// further tasks.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return false
	}
	c.tasks.Add(1)
	return true
}
