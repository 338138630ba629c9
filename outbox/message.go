package outbox

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
)

// Message is a message to be sent. A Message is a value; nothing in this package changes its map or payload. ID, Topic and Key have no
// control characters, and no space around them. Some brokers would refuse or trim these, and no inbox would take such an ID.
type Message struct {
	// ID names the message everywhere: 1 to 255 bytes of UTF-8. Enqueue makes a UUID of version 7 where
	// ID is empty. A second message of the same ID fails with the database's error of a duplicate key.
	ID string
	// Topic is where the publisher sends the message: an exchange or routing key, a subject, a stream, the
	// path of a URL. 1 to 255 bytes of UTF-8.
	Topic string
	// Key orders messages: those of one key are sent in the order in which they were enqueued. An empty
	// key asks for no order. 0 to 255 bytes of UTF-8.
	Key string
	// Headers go with the payload: at most 64, together at most 16 KiB of UTF-8. NATS and webhooks take the names and values of HTTP only.
	Headers map[string]string
	// Payload is bounded by Options.MaxPayload, by default 1 MiB.
	Payload []byte
	// Time is when the message was enqueued, by the clock of the database, in whole seconds. The table sets it.
	Time time.Time
	// Attempt is 1 at the first sending. The relay sets it.
	Attempt int
}

// The bounds of a message.
const (
	maxName    = 255      // bytes of an ID, a topic or a key
	maxHeaders = 64       // headers of a message
	maxHeader  = 16 << 10 // bytes of all headers
)

// NewID returns an ID that no other call returns: a UUID of version 7. NewID panics only if the
// system has no random bits.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // rand.Read never fails
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Now().UnixMilli()))
	copy(b[:6], ms[2:])
	b[6], b[8] = 0x70|b[6]&0x0f, 0x80|b[8]&0x3f
	text := hex.EncodeToString(b[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// validate returns an error that names the field that is out of its range.
func (m Message) validate(maxPayload int) error {
	for _, f := range []struct {
		name, value string
		least       int
	}{{"ID", m.ID, 1}, {"Topic", m.Topic, 1}, {"Key", m.Key, 0}} {
		if len(f.value) < f.least || len(f.value) > maxName {
			return fmt.Errorf("%w: Message.%s has %d bytes: %d to %d are allowed", pawl.ErrInvalid, f.name, len(f.value), f.least, maxName)
		}
		if !utf8.ValidString(f.value) || strings.ContainsFunc(f.value, unicode.IsControl) || strings.TrimSpace(f.value) != f.value {
			return fmt.Errorf("%w: Message.%s is %q: UTF-8 without control characters, and without space around it, is allowed", pawl.ErrInvalid, f.name, f.value)
		}
	}
	size := 0
	for name, value := range m.Headers {
		size += len(name) + len(value)
		if name == "" || !plain(name) || !plain(value) {
			return fmt.Errorf("%w: Message.Headers: a name is empty, or a header is not UTF-8", pawl.ErrInvalid)
		}
	}
	if len(m.Headers) > maxHeaders || size > maxHeader {
		return fmt.Errorf("%w: Message.Headers: %d with %d bytes: %d with %d bytes are allowed", pawl.ErrInvalid, len(m.Headers), size, maxHeaders, maxHeader)
	}
	if len(m.Payload) > maxPayload {
		return fmt.Errorf("%w: Message.Payload has %d bytes: 0 to %d are allowed", pawl.ErrInvalid, len(m.Payload), maxPayload)
	}
	return nil
}

// Validate returns an error that matches [pawl.ErrInvalid] if Enqueue would refuse the messages. Each needs an ID.
func (t *Table) Validate(messages ...Message) error {
	if len(messages) < 1 || len(messages) > maxBatch {
		return fmt.Errorf("outbox: %w: %d messages: 1 to %d are allowed", pawl.ErrInvalid, len(messages), maxBatch)
	}
	seen := make(map[string]bool)
	for i, m := range messages {
		if err := m.validate(t.maxPayload); err != nil {
			return fmt.Errorf("outbox: message %d: %w", i, err)
		}
		if seen[m.ID] {
			return fmt.Errorf("outbox: message %d: %w: an earlier one has the ID %q, too", i, pawl.ErrInvalid, m.ID)
		}
		seen[m.ID] = true
	}
	return nil
}

// plain reports whether a text is UTF-8 that every database keeps: PostgreSQL keeps no NUL.
func plain(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

// lane names the messages that wait for one another. A message without a key is alone in its lane.
func (m Message) lane() string {
	if m.Key == "" {
		return "\x00" + m.ID
	}
	return m.Key
}

// part returns the number of the partition of the message.
func (m Message) part() int {
	h := fnv.New32a()
	h.Write([]byte(m.lane())) //nolint:errcheck // a hash never fails
	return int(h.Sum32() % Partitions)
}
