// Package publishertest has the tests that every publisher of an outbox passes with its real broker.
package publishertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/outbox"
)

// Broker is a real broker and a publisher for it. The broker is killed, restarted and paused.
type Broker struct {
	Publisher outbox.Publisher
	Topic     string
	// Kept reads all messages that the broker keeps under the topic, in its order.
	Kept                         func(t *testing.T) []outbox.Message
	Kill, Restart, Pause, Resume func()
	// Refused are messages that the broker never takes. The test sets the other fields.
	Refused map[string]outbox.Message
}

// at is a time as the table has it, in whole seconds.
var at = time.Unix(1_790_000_000, 0)

// Run runs all tests on a broker without messages.
func Run(t *testing.T, b Broker) {
	t.Run("a message arrives whole", func(t *testing.T) { whole(t, b) })
	t.Run("refused", func(t *testing.T) { refused(t, b) })
	t.Run("a frozen broker does not hold a call beyond its ctx", func(t *testing.T) { frozen(t, b) })
	t.Run("what is confirmed is kept when the broker is killed", func(t *testing.T) { killed(t, b) })
	t.Run("a broker that is away blocks", func(t *testing.T) { away(t, b) })
}

func whole(t *testing.T, b Broker) {
	sent := []outbox.Message{
		{ID: "whole-1", Topic: b.Topic, Key: "order 7/ü", Headers: map[string]string{"Trace": "a=b; c", "X-Empty": ""}, Payload: []byte("a\x00\r\n\xffz"), Time: at},
		{ID: "whole-2", Topic: b.Topic, Payload: []byte{}, Time: at.Add(time.Hour)},
	}
	for _, m := range sent {
		if err := b.Publisher.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	kept := b.Kept(t)
	if len(kept) != len(sent) {
		t.Fatalf("the broker keeps %d messages: %+v", len(kept), kept)
	}
	for i, got := range kept {
		want := sent[i]
		if got.ID != want.ID || got.Key != want.Key || string(got.Payload) != string(want.Payload) || !got.Time.Equal(want.Time) || !maps.Equal(got.Headers, want.Headers) {
			t.Errorf("%+v arrived as %+v", want, got)
		}
	}
}

func refused(t *testing.T, b Broker) {
	before := len(b.Kept(t))
	for name, m := range b.Refused {
		if m.ID == "" {
			m.ID = "refused"
		}
		if m.Topic == "" {
			m.Topic = b.Topic
		}
		m.Time = at
		err := b.Publisher.Publish(t.Context(), m)
		if !errors.Is(err, outbox.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %v", name, err)
	}
	if after := len(b.Kept(t)); after != before {
		t.Errorf("%d refused messages are kept", after-before)
	}
}

func frozen(t *testing.T, b Broker) {
	b.Pause()
	const wait = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	timer := time.NewTimer(20 * time.Second) // enough for every machine, and less than the patience of any client
	defer timer.Stop()
	done := make(chan error, 1)
	go func() { done <- b.Publisher.Publish(ctx, outbox.Message{ID: "frozen", Topic: b.Topic, Time: at}) }()
	select {
	case err := <-done:
		if err == nil || errors.Is(err, outbox.ErrRefused) {
			t.Errorf("a frozen broker: %v", err)
		}
		t.Log(err)
	case <-timer.C:
		t.Error("the call outlives its ctx")
	}
	b.Resume()
	send(t, b, outbox.Message{ID: "thawed", Topic: b.Topic, Time: at}, nil)
}

// patience is longer than a broker may take to start twice on a busy machine.
const patience = 11 * time.Minute

// send sends a message until the broker has confirmed it.
func send(t *testing.T, b Broker, m outbox.Message, failed func(error)) (confirmed bool) {
	for deadline, pause := time.Now().Add(patience), 10*time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := b.Publisher.Publish(ctx, m)
		cancel()
		if err == nil {
			return true
		}
		if failed != nil {
			failed(err)
		}
		if errors.Is(err, outbox.ErrRefused) || time.Now().After(deadline) {
			t.Errorf("message %s: %v", m.ID, err)
			return false
		}
		time.Sleep(pause) // as the relay waits before a repeat
	}
}

func killed(t *testing.T, b Broker) {
	const window, kills = 256, 2
	var confirmed, failures atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ids := make([][]string, window)
	var senders sync.WaitGroup
	for i := range window {
		senders.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				m := outbox.Message{ID: fmt.Sprintf("killed-%d-%d", i, n), Topic: b.Topic, Key: fmt.Sprint(i), Payload: make([]byte, 256), Time: at}
				if !send(t, b, m, func(error) { failures.Add(1) }) {
					return
				}
				confirmed.Add(1)
				ids[i] = append(ids[i], m.ID)
			}
		})
	}
	more := func(n int64) { // waits until so many more are confirmed
		for from, deadline := confirmed.Load(), time.Now().Add(patience); confirmed.Load() < from+n && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
	}
	for range kills {
		more(2 * window)
		b.Kill()
		b.Restart()
	}
	more(2 * window)
	stop()
	senders.Wait()
	kept, place := make(map[string]bool), make(map[string]int)
	for i, m := range b.Kept(t) {
		if kept[m.ID] = true; place[m.ID] == 0 {
			place[m.ID] = i + 1
		}
	}
	lost := 0
	for _, all := range ids {
		for n, id := range all {
			if !kept[id] {
				lost++
			} else if n > 0 && place[id] < place[all[n-1]] {
				t.Errorf("%s is before %s, which was confirmed before it was sent", id, all[n-1])
			}
		}
	}
	t.Logf("%d confirmed, %d sendings failed, %d lost", confirmed.Load(), failures.Load(), lost)
	if lost > 0 || failures.Load() == 0 || confirmed.Load() < 6*window {
		t.Error("confirmed messages are lost, or the broker was not in trouble")
	}
}

func away(t *testing.T, b Broker) {
	b.Kill()
	defer b.Restart()
	for deadline := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := b.Publisher.Publish(ctx, outbox.Message{ID: "away", Topic: b.Topic, Time: at})
		cancel()
		switch {
		case errors.Is(err, outbox.ErrBlocked):
			t.Log(err)
			return
		case err == nil || errors.Is(err, outbox.ErrRefused) || time.Now().After(deadline):
			t.Fatalf("a broker that is away: %v", err)
		}
		time.Sleep(10 * time.Millisecond) // the client is about to notice
	}
}
