package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/publishertest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/webhook"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

var secret = []byte("0123456789abcdef01234567")

// receiver is a server that keeps what it is sent. A receiver that is killed ends all connections at once.
type receiver struct {
	t      *testing.T
	addr   string
	server *http.Server
	thaw   chan struct{} // closed unless the receiver is paused

	mu     sync.Mutex
	kept   []outbox.Message
	status int
	after  string // Retry-After
}

func newReceiver(t *testing.T) *receiver {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{t: t, addr: listener.Addr().String(), thaw: make(chan struct{})}
	close(r.thaw)
	r.serve(listener)
	t.Cleanup(func() { r.server.Close() }) //nolint:errcheck // the end
	return r
}

func (r *receiver) serve(listener net.Listener) {
	r.server = &http.Server{Handler: r}
	go r.server.Serve(listener) //nolint:errcheck // it ends by Close
}

func (r *receiver) kill() { r.server.Close() } //nolint:errcheck // it ends

func (r *receiver) restart() {
	listener, err := net.Listen("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.serve(listener)
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	<-r.thaw
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, 4096))
	if err != nil {
		http.Error(w, "the body is too large", http.StatusRequestEntityTooLarge)
		return
	}
	if err := webhook.Verify(q.Header, body, 5*time.Minute, secret); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	h := q.Header
	m := outbox.Message{ID: h.Get(webhook.HeaderID), Topic: event(h, "Type"), Key: event(h, "Partitionkey"), Payload: body, Headers: map[string]string{}}
	if m.Time, err = time.Parse(time.RFC3339, h.Get("Ce-Time")); err != nil || event(h, "Id") != m.ID || h.Get("Ce-Specversion") != "1.0" || h.Get("Ce-Source") != "/orders" {
		http.Error(w, fmt.Sprintf("no event: %v", h), http.StatusBadRequest)
		return
	}
	for name := range h {
		if name == "Trace" || strings.HasPrefix(name, "X-") {
			m.Headers[name] = h.Get(name)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status != 0 {
		w.Header().Set("Retry-After", r.after)
		w.Header().Set("Location", "/elsewhere")
		http.Error(w, "said by the server", r.status)
		return
	}
	r.kept = append(r.kept, m)
}

// event returns an attribute of an event, decoded.
func event(h http.Header, name string) string {
	value, err := url.PathUnescape(h.Get("Ce-" + name))
	if err != nil {
		return err.Error()
	}
	return value
}

func (r *receiver) messages(*testing.T) []outbox.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]outbox.Message(nil), r.kept...)
}

func (r *receiver) answer(status int, after string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.after = status, after
}

func (r *receiver) publisher() *webhook.Publisher {
	p, err := webhook.New("http://"+r.addr+"/events", webhook.Options{Secret: secret, Source: "/orders"})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func TestPublisher(t *testing.T) {
	r := newReceiver(t)
	publishertest.Run(t, publishertest.Broker{
		Publisher: r.publisher(), Topic: "order.placed", Kept: r.messages, Kill: r.kill, Restart: r.restart,
		Pause: func() { r.thaw = make(chan struct{}) }, Resume: func() { close(r.thaw) },
		Refused: map[string]outbox.Message{
			"too large":             {Payload: make([]byte, 5000)},
			"a header of the event": {Headers: map[string]string{"ce-id": "other"}},
			"a header of HTTP":      {Headers: map[string]string{"Content-Length": "7"}},
			"a header of two lines": {Headers: map[string]string{"a": "b\r\nc: d"}},
			"a key of two lines":    {Key: "a\nb"},
			"a header twice":        {Headers: map[string]string{"trace": "1", "Trace": "2"}},
		},
	})
}

// TestStatuses: a status says what becomes of the message. A redirect is not followed.
func TestStatuses(t *testing.T) {
	r := newReceiver(t)
	p := r.publisher()
	for status, want := range map[int]error{
		200: nil, 204: nil, 301: outbox.ErrBlocked, 308: outbox.ErrBlocked, 400: outbox.ErrRefused, 401: outbox.ErrBlocked, 403: outbox.ErrBlocked,
		404: outbox.ErrBlocked, 408: outbox.ErrBlocked, 409: outbox.ErrBlocked, 413: outbox.ErrRefused, 422: outbox.ErrRefused, 429: outbox.ErrBlocked, 500: outbox.ErrBlocked, 503: outbox.ErrBlocked,
	} {
		r.answer(status, "")
		err := p.Publish(t.Context(), outbox.Message{ID: strconv.Itoa(status), Topic: "order.placed"})
		if !errors.Is(err, want) || err != nil && status >= 400 && !strings.Contains(err.Error(), "said by the server") {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestRetryAfter: the publisher waits for as long as the server asks for, and no longer than its ctx.
func TestRetryAfter(t *testing.T) {
	r := newReceiver(t)
	r.answer(503, "1")
	began := time.Now()
	if err := r.publisher().Publish(t.Context(), outbox.Message{ID: "1", Topic: "x"}); !errors.Is(err, outbox.ErrBlocked) || time.Since(began) < time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	r.answer(429, "3000")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.publisher().Publish(ctx, outbox.Message{ID: "1", Topic: "x"}); err == nil || errors.Is(err, outbox.ErrRefused) {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	for name, wrong := range map[string]struct {
		url  string
		opts webhook.Options
	}{
		"URL":         {"ftp://user:hidden@host/", webhook.Options{}},
		"the URL":     {"/events", webhook.Options{}},
		"no URL":      {"http://user:hidden@ho st/", webhook.Options{}},
		"Secret":      {"http://host", webhook.Options{Secret: []byte("hidden")}},
		"Source":      {"http://host", webhook.Options{Source: "a\nb"}},
		"ContentType": {"http://host", webhook.Options{ContentType: "a\nb"}},
	} {
		_, err := webhook.New(wrong.url, wrong.opts)
		if !errors.Is(err, pawl.ErrInvalid) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestVerify: the sample of the specification is good, and each change of it is not.
func TestVerify(t *testing.T) {
	key, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"test": 2432232314}`)
	if got := webhook.Sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), body); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
	now := time.Now()
	header := func(change func(http.Header)) http.Header {
		h := http.Header{}
		h.Set(webhook.HeaderID, "1")
		h.Set(webhook.HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
		h.Set(webhook.HeaderSignature, "v1a,xx v1,!! "+webhook.Sign(key, "1", now, body))
		change(h)
		return h
	}
	verify := func(h http.Header, body []byte, secrets ...[]byte) error {
		return webhook.Verify(h, body, time.Minute, secrets...)
	}
	if err := errors.Join(verify(header(func(http.Header) {}), body, secret, key)); err != nil {
		t.Error(err)
	}
	at := func(d time.Duration) func(http.Header) {
		return func(h http.Header) {
			h.Set(webhook.HeaderTimestamp, strconv.FormatInt(now.Add(d).Unix(), 10))
			h.Set(webhook.HeaderSignature, webhook.Sign(key, "1", now.Add(d), body))
		}
	}
	for name, change := range map[string]func(http.Header){
		"another ID": func(h http.Header) { h.Set(webhook.HeaderID, "2") }, "no ID": func(h http.Header) { h.Del(webhook.HeaderID) },
		"no signature": func(h http.Header) { h.Del(webhook.HeaderSignature) }, "no time": func(h http.Header) { h.Del(webhook.HeaderTimestamp) },
		"no version": func(h http.Header) {
			h.Set(webhook.HeaderSignature, strings.TrimPrefix(webhook.Sign(key, "1", now, body), "v1,"))
		},
		"too old": at(-2 * time.Minute), "too new": at(2 * time.Minute), "far away": func(h http.Header) { h.Set(webhook.HeaderTimestamp, "-9223372036854775808") },
	} {
		if err := verify(header(change), body, key); !errors.Is(err, webhook.ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"another body": verify(header(func(http.Header) {}), []byte("x"), key), "another secret": verify(header(func(http.Header) {}), body, secret),
		"no secret": verify(header(func(http.Header) {}), body), "an empty secret": verify(header(func(http.Header) {}), body, nil),
	} {
		if !errors.Is(err, webhook.ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"whsec_!", "whsec_", "whsec_c2hvcnQ="} {
		if _, err := webhook.ParseSecret(text); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestVerifyBounds: a header of many signatures costs no more than that of one, because a sender needs no secret to write the header.
func TestVerifyBounds(t *testing.T) {
	now, body := time.Now(), make([]byte, 1<<20)
	good := webhook.Sign(secret, "1", now, body)
	wrong := webhook.Sign([]byte("another secret of 32 bytes, used"), "1", now, body) + " "
	verify := func(signatures string) error {
		h := http.Header{webhook.HeaderID: {"1"}, webhook.HeaderTimestamp: {strconv.FormatInt(now.Unix(), 10)}, webhook.HeaderSignature: {signatures}}
		return webhook.Verify(h, body, time.Minute, []byte("a secret that comes before, long"), secret)
	}
	if err := verify(strings.Repeat(wrong, 15) + good); err != nil {
		t.Error(err)
	}
	began := time.Now()
	for _, one := range []string{wrong, "v1, ", "v1,AAAA "} {
		if err := verify(strings.Repeat(one, 10_000) + good); !errors.Is(err, webhook.ErrSignature) {
			t.Errorf("10,001 signatures of %q: %v", one, err)
		}
	}
	if took := time.Since(began); took > 5*time.Second { // 60,000 sums took half a minute, and six take milliseconds
		t.Errorf("it took %v", took)
	}
}
