package webhook

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/outbox"
	sender "github.com/pawl-go/pawl/outbox/webhook"
)

var secret, other = []byte("0123456789abcdef01234567"), []byte("another secret of 32 bytes, used")

// hook is a source behind a server, with a feed that the test reads.
type hook struct {
	*Source
	url  string
	feed inbox.Feed
	mu   sync.Mutex
	said []string // by OnError
}

func newHook(t *testing.T, opts Options) *hook {
	t.Helper()
	h := &hook{}
	opts.OnError = func(err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.said = append(h.said, err.Error())
	}
	var err error
	if h.Source, err = New(&opts); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h.Source)
	t.Cleanup(server.Close)
	h.url = server.URL
	if h.feed, err = h.Open(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	return h
}

// next returns the next delivery.
func (h *hook) next(t *testing.T) inbox.Delivery {
	t.Helper()
	got, err := h.feed.Receive(t.Context(), 1)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	return got[0]
}

// send sends a message as a relay does. The result comes later.
func (h *hook) send(t *testing.T, m outbox.Message, secret []byte) <-chan error {
	t.Helper()
	p, err := sender.New(h.url, sender.Options{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	ctx := context.WithoutCancel(t.Context())
	go func() { result <- p.Publish(ctx, m) }()
	return result
}

func event(id string) outbox.Message {
	return outbox.Message{ID: id, Topic: "order.placed", Key: "k", Payload: []byte("content"), Time: time.Now().Truncate(time.Second).UTC(), Headers: map[string]string{"Trace": "t"}}
}

// until waits until a condition holds under the mutex of the source.
func (h *hook) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		h.Source.mu.Lock()
		ok := holds()
		h.Source.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestVerdicts: the relay takes each verdict as it is meant. Only a message that never takes effect may be dead there.
func TestVerdicts(t *testing.T) {
	want := map[verdict]error{took: nil, refused: outbox.ErrRefused, malformed: outbox.ErrRefused, tooLarge: outbox.ErrRefused,
		unsigned: outbox.ErrBlocked, wrongMethod: outbox.ErrBlocked, later: outbox.ErrBlocked}
	for v := range verdicts {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(v.status()) }))
		p, err := sender.New(server.URL, sender.Options{})
		if err != nil {
			t.Fatal(err)
		}
		means, known := want[v]
		if err := p.Publish(t.Context(), event("1")); !known || !errors.Is(err, means) {
			t.Errorf("verdict %d: %v, want %v", v, err, means)
		}
		server.Close()
	}
}

// TestSettled: a request is answered as its message is settled. The message is that of the outbox.
func TestSettled(t *testing.T) {
	h := newHook(t, Options{Secrets: [][]byte{other, secret}})
	sent := event("1")
	result := h.send(t, sent, secret)
	d := h.next(t)
	m := d.Message()
	delete(m.Headers, "Content-Type")
	if want := (inbox.Message{ID: "1", Topic: sent.Topic, Key: sent.Key, Payload: sent.Payload, Time: sent.Time, Headers: sent.Headers}); !reflect.DeepEqual(m, want) {
		t.Errorf("%+v, want %+v", m, want)
	}
	if err := errors.Join(d.Ack(t.Context()), <-result); err != nil {
		t.Error(err)
	}
	result = h.send(t, event("2"), other)
	if err := h.next(t).Nack(t.Context()); err != nil || !errors.Is(<-result, outbox.ErrBlocked) {
		t.Error("a message that was given back does not block", err)
	}
	result = h.send(t, event("3"), secret)
	d = h.next(t)
	if err := errors.Join(d.Dead(t.Context(), "no such order"), d.Nack(t.Context())); err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, outbox.ErrRefused) || !strings.Contains(err.Error(), "no such order") {
		t.Error(err)
	}
}

// TestManyMessages: messages at the consumer count also when their requests have ended. A repeat finds its message, and a settled message
// makes room.
func TestManyMessages(t *testing.T) {
	h := newHook(t, Options{Requests: 2, Wait: 200 * time.Millisecond})
	blocked := func(result <-chan error, reason string) {
		t.Helper()
		if err := <-result; !errors.Is(err, outbox.ErrBlocked) || !strings.Contains(err.Error(), reason) {
			t.Error(err)
		}
	}
	var ds []inbox.Delivery
	one := event("1")
	for _, m := range []outbox.Message{one, event("2")} {
		result := h.send(t, m, nil)
		ds = append(ds, h.next(t))
		blocked(result, unready.reason)
	}
	blocked(h.send(t, event("3"), nil), full.reason)
	blocked(h.send(t, one, nil), unready.reason)
	if err := ds[0].Ack(t.Context()); err != nil {
		t.Error(err)
	}
	result := h.send(t, event("3"), nil)
	if err := errors.Join(h.next(t).Ack(t.Context()), <-result); err != nil {
		t.Error(err)
	}
}

// TestBadRequests: a request that is no signed event reaches no consumer.
func TestBadRequests(t *testing.T) {
	h := newHook(t, Options{Secrets: [][]byte{secret}, MaxBody: 100})
	now := time.Now()
	for name, c := range map[string]struct {
		want   int
		change func(*http.Request)
		body   string
	}{
		"another method":     {405, func(r *http.Request) { r.Method = http.MethodPut }, "x"},
		"no signature":       {401, func(r *http.Request) { r.Header.Del(sender.HeaderSignature) }, "x"},
		"another secret":     {401, func(r *http.Request) { r.Header.Set(sender.HeaderSignature, sender.Sign(other, "1", now, []byte("x"))) }, "x"},
		"another body":       {401, func(r *http.Request) { r.Header.Set(sender.HeaderSignature, sender.Sign(secret, "1", now, nil)) }, "x"},
		"an old signature":   {401, func(r *http.Request) { at(r, now.Add(-6*time.Minute)) }, "x"},
		"from ahead":         {401, func(r *http.Request) { at(r, now.Add(6*time.Minute)) }, "x"},
		"no ID":              {401, func(r *http.Request) { r.Header.Del(sender.HeaderID) }, "x"},
		"another ID":         {400, func(r *http.Request) { r.Header.Set("Ce-Id", "2") }, "x"},
		"no time":            {400, func(r *http.Request) { r.Header.Del("Ce-Time") }, "x"},
		"no time of RFC3339": {400, func(r *http.Request) { r.Header.Set("Ce-Time", "yesterday") }, "x"},
		"a time far ahead": {503, func(r *http.Request) {
			r.Header.Set("Ce-Time", now.Add(inbox.MaxAhead+time.Minute).Format(time.RFC3339))
		}, "x"},
		"too large": {413, func(*http.Request) {}, strings.Repeat("x", 101)},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Ce-Id": {"1"}, "Ce-Time": {now.Format(time.RFC3339)}, sender.HeaderID: {"1"}}
		at(r, now)
		if c.body != "x" {
			r.Header.Set(sender.HeaderSignature, sender.Sign(secret, "1", now, []byte(c.body)))
		}
		c.change(r)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", name, answer.StatusCode, c.want)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Source.mu.Lock(); len(h.held) > 0 || len(h.said) != 12 {
		t.Errorf("%d messages reached the queue; told: %q", len(h.held), h.said)
	}
	h.Source.mu.Unlock()
}

// at signs the body "x" at a time.
func at(r *http.Request, at time.Time) {
	r.Header.Set(sender.HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	r.Header.Set(sender.HeaderSignature, sender.Sign(secret, "1", at, []byte("x")))
}

// TestRepeat: a repeat waits for the message that is here, and another message of the same ID comes later.
func TestRepeat(t *testing.T) {
	h := newHook(t, Options{})
	e := event("1")
	first := h.send(t, e, nil)
	d := h.next(t)
	second := h.send(t, e, nil)
	h.until(t, "both requests wait", func() bool { return h.held["1"].waiters == 2 })
	changed := event("1")
	changed.Payload = []byte("changed")
	if err := <-h.send(t, changed, nil); !errors.Is(err, outbox.ErrBlocked) {
		t.Error(err)
	}
	if err := errors.Join(d.Ack(t.Context()), <-first, <-second); err != nil {
		t.Error(err)
	}
	if len(h.queue) > 0 {
		t.Error("the repeat runs, too")
	}
}

// TestWait: a request that waits for too long comes again, and then gets the answer. A dead letter waits for its request, and an operator
// may send it again later.
func TestWait(t *testing.T) {
	h := newHook(t, Options{Wait: 100 * time.Millisecond})
	if err := <-h.send(t, event("1"), nil); !errors.Is(err, outbox.ErrBlocked) {
		t.Error(err)
	}
	h.until(t, "a message that nobody waits for leaves the queue", func() bool { return len(h.queue)+len(h.held) == 0 })
	e := event("1")
	result := h.send(t, e, nil)
	d := h.next(t)
	if err := <-result; !errors.Is(err, outbox.ErrBlocked) {
		t.Error(err)
	}
	if err := d.Dead(t.Context(), "it failed 20 times"); err != nil {
		t.Error(err)
	}
	left := func() time.Duration {
		h.Source.mu.Lock()
		defer h.Source.mu.Unlock()
		for _, l := range h.dead {
			return time.Until(l.until)
		}
		return 0
	}
	if left() <= told {
		t.Error("the dead letter does not wait for its request", left())
	}
	for range 2 { // a repeat may have been under way
		if err := <-h.send(t, e, nil); !errors.Is(err, outbox.ErrRefused) || !strings.Contains(err.Error(), "it failed 20 times") {
			t.Error(err)
		}
	}
	if left() > told {
		t.Error("the dead letter is kept after its request", left())
	}
}

// TestBound: a request beyond the bound is told to come again. So is one without a consumer.
func TestBound(t *testing.T) {
	h := newHook(t, Options{Requests: 2})
	one, two := h.send(t, event("1"), nil), h.send(t, event("2"), nil)
	ds := []inbox.Delivery{h.next(t), h.next(t)}
	if err := <-h.send(t, event("3"), nil); !errors.Is(err, outbox.ErrBlocked) || !strings.Contains(err.Error(), full.reason) {
		t.Error(err)
	}
	for _, d := range ds {
		if err := d.Ack(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(<-one, <-two); err != nil {
		t.Error(err)
	}
	last := h.send(t, event("4"), nil)
	h.until(t, "it is in the queue", func() bool { return len(h.queue) == 1 })
	if err := h.feed.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-last; !errors.Is(err, outbox.ErrBlocked) || !strings.Contains(err.Error(), idle.reason) {
		t.Error(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header = http.Header{"Ce-Id": {"5"}, "Ce-Time": {"2026-01-02T03:04:05Z"}, sender.HeaderID: {"5"}}
	if h.ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d, %v", w.Code, w.Header())
	}
}

// TestLetters: the memory of dead letters is bounded. A letter whose time is over makes room before others, and a letter that is there needs none.
func TestLetters(t *testing.T) {
	h := newHook(t, Options{})
	sum := func(n int) (s [32]byte) {
		s[0], s[1] = byte(n), byte(n>>8)
		return s
	}
	h.Source.mu.Lock()
	defer h.Source.mu.Unlock()
	for n := range mostDead - 1 {
		h.keep(sum(n), "live", told)
	}
	h.dead[sum(mostDead)] = letter{"over", time.Now()}
	h.keep(sum(1), "live", told)
	if len(h.dead) != mostDead {
		t.Errorf("%d letters: one that is there needed room", len(h.dead))
	}
	h.keep(sum(mostDead+1), "live", told)
	for n := range mostDead - 1 {
		if _, is := h.dead[sum(n)]; !is {
			t.Errorf("letter %d had to go for one that is over", n)
		}
	}
	h.keep(sum(mostDead+2), "live", told)
	if _, is := h.dead[sum(mostDead+2)]; !is || len(h.dead) != mostDead {
		t.Errorf("%d letters", len(h.dead))
	}
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string]Options{"Secrets": {Secrets: [][]byte{[]byte("hidden")}}, "Tolerance": {Tolerance: -1}, "MaxBody": {MaxBody: -1}, "Requests": {Requests: 1_000_000}, "Wait": {Wait: 1}} {
		if _, err := New(&opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "Options."+name) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
