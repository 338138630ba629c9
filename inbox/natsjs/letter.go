package natsjs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// maxParts is how many letters take one message at most.
const maxParts = 64

// Codes of errors of nats-server that its client has no names for.
const (
	messageTooLarge = 10054
	storeFailed     = 10077 // with this text from an old server
)

// tooLarge reports whether no try of this letter will succeed.
func tooLarge(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &api) &&
		(api.ErrorCode == messageTooLarge || api.ErrorCode == storeFailed && strings.Contains(api.Description, "message size exceeds"))
}

// bury publishes the dead letter of a message. A letter has more headers than the message, so the server may take the message and not
// the letter. Then several letters have a part of the payload each.
func (d *delivery) bury(ctx context.Context, reason string) (err error) {
	for parts := 1; parts <= maxParts; parts *= 2 {
		err = nil
		for part := 0; part < parts && err == nil; part++ {
			_, err = d.feed.js.PublishMsg(ctx, d.letter(reason, part, parts))
		}
		if !tooLarge(err) {
			return err
		}
	}
	return fmt.Errorf("in %d parts: %w", maxParts, err)
}

// letter is a part of the dead letter of a message, counted from 0.
func (d *delivery) letter(reason string, part, parts int) *nats.Msg {
	s, data := d.feed.Source, d.msg.Data()
	letter := &nats.Msg{Subject: s.opts.Dead, Header: make(nats.Header), Data: data[len(data)*part/parts : len(data)*(part+1)/parts]}
	for name, values := range d.msg.Headers() {
		server := strings.HasPrefix(strings.ToLower(name), "nats-") && name != jetstream.MsgIDHeader // the server would obey, or refuse the letter
		if server || name == headerStatus {
			name = headerMoved + name
		}
		letter.Header[name] = values
	}
	sequence := strconv.FormatUint(d.sequence, 10)
	letter.Header[headerID] = []string{d.m.ID}
	letter.Header[headerReason] = []string{plain(reason)}
	letter.Header[headerSequence] = []string{sequence}
	// One stream may take the letters of several streams, and of a stream that was made again.
	id := fmt.Sprintf("%s/%s/%s/%d", s.stream, s.durable, sequence, d.stored.UnixNano())
	if parts > 1 {
		of := fmt.Sprintf("%d/%d", part+1, parts)
		letter.Header[headerPart] = []string{of}
		id += "/" + of
	}
	letter.Header[jetstream.MsgIDHeader] = []string{id}
	return letter
}

// plain makes a text that a header can have.
func plain(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), 1000)], "")
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, text))
}
