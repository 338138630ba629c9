// Package webhook publishes the messages of an outbox to an HTTP server, signed, as CloudEvents.
//
//	publisher, err := webhook.New("https://shop.example/events", webhook.Options{Secret: secret, Source: "/orders"})
//	...
//	relay, err := table.Relay(client, db, publisher, nil)
//
// Each message is a POST to the URL, in the binary mode of CloudEvents 1.0. The payload is the body. Message.Topic is
// the type of the event, and these headers are set:
//
//	Ce-Specversion     1.0
//	Ce-Id              Message.ID
//	Ce-Source          Options.Source
//	Ce-Type            Message.Topic
//	Ce-Time            Message.Time as RFC 3339
//	Ce-Partitionkey    Message.Key, if there is one
//	Webhook-Id         Message.ID
//	Webhook-Timestamp  the time of the sending, in seconds since 1970
//	Webhook-Signature  "v1," and the HMAC-SHA256 of ID, timestamp and body
//
// Space, ", % and all that is not ASCII are percent-encoded in the headers Ce-*, as CloudEvents demands: 50% is 50%25.
// The headers of the message are headers of the request, beside those above. The signature is that of Standard
// Webhooks (https://www.standardwebhooks.com), and so libraries of many languages check it. [Verify] does so in Go. Package
// inbox/webhook is a receiver with an inbox.
//
// # What is promised
//
//   - A server confirms a message by a status of 2xx. The server should answer after its transaction is committed.
//   - Redirects are not followed, because a signed message is for one receiver.
//   - A message that a server may have got is sent again. Receivers recognise repeats by Webhook-Id.
//
// # Errors
//
// The statuses 400, 406, 411, 413, 414, 415, 422 and 431 refuse the message. So does a header that HTTP cannot carry. All
// other statuses block the publisher, also 404, because the URL is the same for all messages. A server that cannot be
// reached blocks too. Those messages wait. A Retry-After in seconds is waited for, up to a minute and within the
// relay's Timeout. A Retry-After with a date is not read.
//
// An error has the start of the server's answer. The user, the password, the path and the parameters of the URL are *** there,
// because they may be secrets.
package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/internal/httpheader"
)

// Options are the settings of [New].
type Options struct {
	// Secret signs: 24 to 64 bytes. Standard Webhooks writes it as "whsec_" and base64, see [ParseSecret]. Without a secret
	// nothing is signed.
	Secret []byte
	// Source is the source of the events, a URI reference of 1 to 255 bytes. Default "/".
	Source string
	// ContentType is that of the payload of a message without a header Content-Type. Default "application/octet-stream".
	ContentType string
	// Client sends the requests, and its CheckRedirect is not used. Default is a client that keeps up to 64 connections.
	Client *http.Client
}

// Publisher is an [outbox.Publisher]. A Publisher is safe for concurrent use. Create it with [New].
type Publisher struct {
	url    string
	hide   *strings.Replacer
	opts   Options
	client http.Client
}

// New returns a publisher to an absolute URL of http or https. Nothing is asked. The error matches pawl.ErrInvalid, and never
// has the URL or the secret in it.
func New(rawURL string, opts Options) (*Publisher, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("webhook: %w: the URL is not an absolute one of http or https", pawl.ErrInvalid)
	}
	if opts.Source == "" {
		opts.Source = "/"
	}
	if opts.ContentType == "" {
		opts.ContentType = "application/octet-stream"
	}
	if len(opts.Secret) != 0 && (len(opts.Secret) < leastSecret || len(opts.Secret) > mostSecret) {
		return nil, fmt.Errorf("webhook: %w: Options.Secret has %d bytes: %d to %d are allowed", pawl.ErrInvalid, len(opts.Secret), leastSecret, mostSecret)
	}
	if _, err := url.Parse(opts.Source); err != nil || len(opts.Source) > 255 || httpheader.Check("Ce-Source", opts.Source) != nil {
		return nil, fmt.Errorf("webhook: %w: Options.Source is no URI reference of 1 to 255 bytes", pawl.ErrInvalid)
	}
	if httpheader.Check("Content-Type", opts.ContentType) != nil {
		return nil, fmt.Errorf("webhook: %w: Options.ContentType cannot be a header", pawl.ErrInvalid)
	}
	p := &Publisher{url: rawURL, hide: hider(u), opts: opts}
	if opts.Client != nil {
		p.client = *opts.Client
	} else {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 64
		p.client.Transport = transport
	}
	p.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return p, nil
}

// Publish implements [outbox.Publisher].
func (p *Publisher) Publish(ctx context.Context, m outbox.Message) error {
	if err := p.publish(ctx, m); err != nil {
		return fmt.Errorf("webhook: publish an event of type %q: %w", m.Topic, err)
	}
	return nil
}

func (p *Publisher) publish(ctx context.Context, m outbox.Message) error {
	request, err := p.request(ctx, m, time.Now())
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return p.unsent(err)
	}
	defer response.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10)) //nolint:errcheck // for people, and the status is here
	if response.StatusCode >= 200 && response.StatusCode <= 299 {
		io.CopyN(io.Discard, response.Body, 64<<10) //nolint:errcheck // so that the connection is kept
		return nil
	}
	err = fmt.Errorf("the server answers %d: %.200q", response.StatusCode, p.hide.Replace(string(said)))
	if slices.Contains(refusing, response.StatusCode) {
		return fmt.Errorf("%w: %w", outbox.ErrRefused, err)
	}
	pause(ctx, response.Header.Get("Retry-After"))
	return fmt.Errorf("%w: %w", outbox.ErrBlocked, err)
}

// refusing are the statuses that no repeat would change.
var refusing = []int{400, 406, 411, 413, 414, 415, 422, 431}

// hider hides the user, the path and the parameters of a URL, which may be secrets. Servers repeat these in their answers. Less than 4 bytes
// are no secret.
func hider(u *url.URL) *strings.Replacer {
	password, _ := u.User.Password()
	all := []string{u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery, u.User.Username(), password}
	for _, path := range []string{u.EscapedPath(), u.Path} { // a part may be the secret, and JSON may have \/ between the parts
		all = append(all, strings.Split(path, "/")...)
	}
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		_, value, _ := strings.Cut(pair, "=")
		plain, _ := url.QueryUnescape(value) //nolint:errcheck // then nobody can repeat the plain one
		all = append(all, value, plain)
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, secret := range all {
		if len(secret) >= 4 {
			pairs = append(pairs, secret, "***")
		}
	}
	return strings.NewReplacer(pairs...)
}

// unsent makes an error of a request without a response, without the URL.
func (p *Publisher) unsent(err error) error {
	for u := (*url.Error)(nil); errors.As(err, &u); {
		err = u.Err
	}
	dial := (*net.OpError)(nil)
	away := errors.As(err, &dial) && dial.Op == "dial"
	if text := p.hide.Replace(err.Error()); text != err.Error() { // such as a Location that is no URL
		err = errors.New(text)
	}
	if away {
		return fmt.Errorf("%w: %w", outbox.ErrBlocked, err)
	}
	return err
}

// pause waits for the time that a server asks for, a minute at most.
func pause(ctx context.Context, after string) {
	seconds, err := strconv.Atoi(after)
	if err != nil || seconds <= 0 {
		return
	}
	timer := time.NewTimer(min(time.Duration(seconds)*time.Second, time.Minute))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// own are the headers that a message cannot set.
func own(name string) bool {
	name = strings.ToLower(name)
	return strings.HasPrefix(name, "ce-") || strings.HasPrefix(name, "webhook-") ||
		slices.Contains([]string{"host", "content-length", "transfer-encoding", "connection", "trailer", "te", "upgrade"}, name)
}

func (p *Publisher) request(ctx context.Context, m outbox.Message, now time.Time) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(m.Payload))
	if err != nil {
		return nil, errors.New("the URL cannot be used") // the error would have the URL in it
	}
	request.Header.Set("Content-Type", p.opts.ContentType)
	seen := make(map[string]bool)
	for name, value := range m.Headers {
		if own(name) {
			return nil, fmt.Errorf("%w: header %q is of the outbox or of HTTP itself", outbox.ErrRefused, name)
		}
		if err := httpheader.Check(name, value); err != nil {
			return nil, err
		}
		if name = http.CanonicalHeaderKey(name); seen[name] {
			return nil, fmt.Errorf("%w: header %q is there twice, in upper and lower case", outbox.ErrRefused, name)
		}
		seen[name] = true
		request.Header.Set(name, value)
	}
	set := map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": m.ID, "Ce-Source": p.opts.Source, "Ce-Type": m.Topic, "Ce-Time": m.Time.UTC().Format(time.RFC3339),
		HeaderID: m.ID, HeaderTimestamp: strconv.FormatInt(now.Unix(), 10),
	}
	if m.Key != "" {
		set["Ce-Partitionkey"] = m.Key
	}
	if len(p.opts.Secret) > 0 {
		set[HeaderSignature] = Sign(p.opts.Secret, m.ID, now, m.Payload)
	}
	for name, value := range set {
		if err := httpheader.Check(name, value); err != nil {
			return nil, err
		}
		if strings.HasPrefix(name, "Ce-") {
			value = encode(value)
		}
		request.Header.Set(name, value)
	}
	return request, nil
}

// encode is the percent-encoding that CloudEvents demands of its headers.
func encode(value string) string {
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c > '~' || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
