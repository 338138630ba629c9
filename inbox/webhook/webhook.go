// Package webhook takes messages from HTTP requests, as a source of package inbox. A relay with package outbox/webhook sends such
// requests, and so does "pawl outbox relay --to https://...".
//
//	source, err := webhook.New(&webhook.Options{Secrets: [][]byte{secret}})
//	...
//	consumer, err := box.Consumer(db, store, source, handle, nil)
//	...
//	go http.ListenAndServe(":8080", source) // beside consumer.Run
//
// The requests are as package outbox/webhook describes them. Webhook-Id is the ID of the message, Ce-Time the time, Ce-Partitionkey the
// key, Ce-Type the topic, and the body the payload. The percent-encoding of the headers Ce-* is undone. Other headers are those of the message, under their canonical names. The message
// has no header that begins with Ce- or Webhook-, and no Accept-Encoding, Content-Length or User-Agent, which clients of HTTP add.
//
// # Answers
//
//	204  the message took effect, now or before; the transaction is committed
//	422  the message is a dead letter: too old, refused by the handler, failed too often, or another message had its ID; the ID has
//	     more than 255 bytes, has control characters or is no UTF-8
//	400  the request is no event with an ID and a time
//	413  the body has more than Options.MaxBody bytes
//	401  the signature is not good; with Options.Secrets this is also the answer to a request without an ID
//	405  the method is not POST
//	503  come again after Retry-After: the message is not settled yet, no consumer runs, too many requests or messages are here, or Ce-Time is more
//	     than inbox.MaxAhead ahead of the clock
//
// The relay of the outbox counts an attempt for 400, 413 and 422. After RelayOptions.MaxAttempts of them the message is dead. So the dead letter
// is in the table of the producer, with the reason, and "pawl outbox status" names its key. After 401, 405 and 503 the message waits, and no
// attempt counts. A wrong secret is a mistake of a deployment, so a wrong secret makes no message dead. In HTTP/1 the connection ends after
// an answer to a body that was not read to its end.
//
// # What is promised
//
//   - A request is answered with 204 after the commit, also a repeat that the inbox absorbs.
//   - A message that fails is tried again here, after the waits of inbox.ConsumerOptions. A request that has waited for Options.Wait
//     is answered with 503, and the next request for the same message waits on.
//   - A message that fails ConsumerOptions.MaxAttempts times is refused, also if no request waits then: the next request within an hour
//     gets that answer. Further requests get the same answer, without a run, until none has come for two minutes. Requeue
//     the message after that. A source remembers 1,000 refusals: of more, some are forgotten, and such a message runs again.
//   - Messages of a key keep their order over any number of processes, because the relay sends the next message of a key after the
//     confirm. So inbox.ConsumerOptions.Single is not needed.
//
// # Changing the secret
//
// Give the receivers both secrets, then the new secret to the relays. Take the old secret from the receivers last.
//
// # What is not promised
//
// The signature covers the ID, the time of sending and the body. All other headers are as safe as the connection, so use https.
// The failures of a message are counted in one process, and a restart forgets them. A message that ends each process that runs it
// gets no answer: the relay counts such attempts, if other messages are confirmed. With several
// processes behind one address, a process may finish a message that another has refused.
package webhook

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/outbox/webhook"
)

// Options are the settings of [New].
type Options struct {
	// Secrets are the secrets of senders, of 24 to 64 bytes each. A request may be signed with any of them. Without a secret each
	// request is taken.
	Secrets [][]byte
	// Tolerance is how far the time of a signature may be away from the clock of this machine: 1 s to 24 h. Default 5 min.
	Tolerance time.Duration
	// MaxBody is how many bytes a body may have: 1 to 64 MiB. Default 1 MiB.
	MaxBody int
	// Requests is how many requests are here at most, and how many messages that are not settled: 1 to 100,000. Default 1,024,
	// which is what one relay sends at most. Each may take MaxBody bytes of memory.
	Requests int
	// Wait is how long a request waits at most, its body and its message together: 100 ms to 1 h. Default 10 s. Let Wait be
	// shorter than the Timeout of the relay. A shorter ReadTimeout of the server bounds the body.
	Wait time.Duration
	// OnError, when set, gets each request that reaches no consumer: without a good signature, too large, one too many. OnError must not
	// block, and must be safe for concurrent use.
	OnError func(error)
}

// Source is an [inbox.Source] and an [http.Handler]. A Source is safe for concurrent use. Create it with [New].
type Source struct {
	opts   Options
	places chan struct{} // one for each request
	bell   chan struct{} // rings when the queue has a message

	mu    sync.Mutex
	feeds int
	queue []*delivery
	held  map[string]*delivery // by ID: those in the queue, and those in the hands of a consumer
	dead  map[[sha256.Size]byte]letter
}

var (
	_ inbox.Source = (*Source)(nil)
	_ http.Handler = (*Source)(nil)
)

// New returns a source for the messages of one consumer. Nil opts are the defaults. The error matches pawl.ErrInvalid, and does not
// show a secret.
func New(opts *Options) (*Source, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	for _, f := range []struct {
		name              string
		value             *time.Duration
		usual, least, max time.Duration
	}{{"Tolerance", &o.Tolerance, 5 * time.Minute, time.Second, 24 * time.Hour}, {"Wait", &o.Wait, 10 * time.Second, 100 * time.Millisecond, time.Hour}} {
		if *f.value == 0 {
			*f.value = f.usual
		}
		if *f.value < f.least || *f.value > f.max {
			return nil, fmt.Errorf("webhook: %w: Options.%s is %v: %v to %v are allowed", pawl.ErrInvalid, f.name, *f.value, f.least, f.max)
		}
	}
	for _, f := range []struct {
		name       string
		value      *int
		usual, max int
	}{{"MaxBody", &o.MaxBody, 1 << 20, 64 << 20}, {"Requests", &o.Requests, 1024, 100_000}} {
		if *f.value == 0 {
			*f.value = f.usual
		}
		if *f.value < 1 || *f.value > f.max {
			return nil, fmt.Errorf("webhook: %w: Options.%s is %d: 1 to %d are allowed", pawl.ErrInvalid, f.name, *f.value, f.max)
		}
	}
	o.Secrets = slices.Clone(o.Secrets)
	for _, secret := range o.Secrets {
		if len(secret) < 24 || len(secret) > 64 {
			return nil, fmt.Errorf("webhook: %w: a secret of Options.Secrets has %d bytes: 24 to 64 are allowed", pawl.ErrInvalid, len(secret))
		}
	}
	return &Source{opts: o, places: make(chan struct{}, o.Requests), bell: make(chan struct{}, 1),
		held: make(map[string]*delivery), dead: make(map[[sha256.Size]byte]letter)}, nil
}

// verdict is how a request ends.
type verdict int

const (
	took verdict = iota
	refused
	malformed
	tooLarge
	unsigned
	wrongMethod
	later
	verdicts // is how many there are
)

// status says what the sender has to do. A status of 400, 413 or 422 makes a message dead at the sender, so no other verdict has such a
// status.
func (v verdict) status() int {
	switch v {
	case took:
		return http.StatusNoContent
	case refused:
		return http.StatusUnprocessableEntity
	case malformed:
		return http.StatusBadRequest
	case tooLarge:
		return http.StatusRequestEntityTooLarge
	case unsigned:
		return http.StatusUnauthorized
	case wrongMethod:
		return http.StatusMethodNotAllowed
	}
	return http.StatusServiceUnavailable
}

// answer is a verdict with its reason.
type answer struct {
	verdict
	reason string
}

// The requests that come again.
var (
	full     = answer{later, "too many requests or messages are here"}
	cutOff   = answer{later, "the body was not read to its end"}
	ahead    = answer{later, fmt.Sprintf("Ce-Time is more than %v ahead of the clock here", inbox.MaxAhead)}
	idle     = answer{later, "no consumer runs"}
	occupied = answer{later, "another message with this ID runs now"}
	unready  = answer{later, "the message is not settled yet"}
	returned = answer{later, "the consumer gave the message back"}
)

// ServeHTTP answers when the message of the request is settled, and after Options.Wait at the latest.
func (s *Source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := s.serve(w, r)
	switch a.verdict {
	case took:
		w.WriteHeader(a.status())
		return
	case later:
		w.Header().Set("Retry-After", "1")
	case wrongMethod:
		w.Header().Set("Allow", http.MethodPost)
	}
	http.Error(w, a.reason, a.status())
}

func (s *Source) serve(w http.ResponseWriter, r *http.Request) answer {
	deadline := time.Now().Add(s.opts.Wait)
	lift := bound(w, r, deadline)
	var d *delivery
	a := full
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
		d, a = s.accept(w, r, lift)
	default:
	}
	if d == nil {
		if a.verdict != refused && s.opts.OnError != nil { // the consumer has told of a dead letter
			s.opts.OnError(fmt.Errorf("webhook: a request is answered with %d: %s", a.status(), a.reason))
		}
		return a
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-d.done:
	case <-timer.C:
	case <-r.Context().Done():
	}
	return s.leave(d)
}

// bound gives the body a deadline, and its connection an end. Otherwise net/http would wait for the rest of a body that is not read,
// before the answer and without a bound. Lift takes both back once the body was read.
func bound(w http.ResponseWriter, r *http.Request, deadline time.Time) (lift func()) {
	control := http.NewResponseController(w)
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	if server == nil || server.ReadTimeout <= 0 || server.ReadTimeout > time.Until(deadline) { // a shorter one of the server stands
		control.SetReadDeadline(deadline) //nolint:errcheck // a server without deadlines has its own way
	}
	if r.ProtoMajor == 1 { // HTTP/2 ends the stream alone, and would end the requests of others by this header
		w.Header().Set("Connection", "close")
	}
	return func() {
		control.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
		w.Header().Del("Connection")
	}
}

// accept reads a request, and waits for nothing but its body.
func (s *Source) accept(w http.ResponseWriter, r *http.Request, lift func()) (*delivery, answer) {
	if r.Method != http.MethodPost {
		return nil, answer{wrongMethod, "the method is not POST"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.opts.MaxBody)))
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return nil, answer{tooLarge, fmt.Sprintf("the body has more than %d bytes", large.Limit)}
	}
	if err != nil {
		return nil, cutOff
	}
	lift()
	if len(s.opts.Secrets) > 0 {
		if err := webhook.Verify(r.Header, body, s.opts.Tolerance, s.opts.Secrets...); err != nil {
			return nil, answer{unsigned, err.Error()}
		}
	}
	m, err := message(r.Header, body)
	if err != nil {
		return nil, answer{malformed, err.Error()}
	}
	if time.Until(m.Time) > inbox.MaxAhead { // the inbox would try again until then, and such messages would fill the consumer's Window
		return nil, ahead
	}
	return s.join(m)
}

// message reads an event. A time of the sending is no substitute for Ce-Time, because a message would never become too old.
func message(h http.Header, body []byte) (m inbox.Message, err error) {
	m = inbox.Message{ID: h.Get(webhook.HeaderID), Topic: attribute(h, "Ce-Type"), Key: attribute(h, "Ce-Partitionkey"), Payload: body, Headers: make(map[string]string)}
	if m.ID == "" || attribute(h, "Ce-Id") != m.ID && h.Get("Ce-Id") != m.ID { // relays before this encoding send the ID itself
		return m, fmt.Errorf("%s is missing, or Ce-Id is another ID", webhook.HeaderID)
	}
	if m.Time, err = time.Parse(time.RFC3339, h.Get("Ce-Time")); err != nil {
		return m, errors.New("Ce-Time is no time of RFC 3339")
	}
	for name, values := range h {
		if !strings.HasPrefix(name, "Ce-") && !strings.HasPrefix(name, "Webhook-") && !slices.Contains(ofHTTP, name) {
			m.Headers[name] = strings.Join(values, ", ")
		}
	}
	return m, nil
}

// attribute returns an attribute of the event, whose percent-encoding is undone once. A value that is not encoded well stays.
func attribute(h http.Header, name string) string {
	if value, err := url.PathUnescape(h.Get(name)); err == nil {
		return value
	}
	return h.Get(name)
}

// ofHTTP are headers that clients add to each request.
var ofHTTP = []string{"Accept-Encoding", "Content-Length", "User-Agent"}
