package inbox

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

// Message is a message as a broker delivered it. A Message is a value; nothing in this package changes its map or payload.
type Message struct {
	// ID names the message: repeats have the same ID. 1 to 255 bytes of UTF-8 without control characters.
	ID string
	// Topic is where the message was: a stream, a subject, a queue.
	Topic string
	// Key orders messages: those of one key run one after another. Messages with an empty key have no order.
	Key string
	// Headers are those of the producer.
	Headers map[string]string
	// Payload is the content.
	Payload []byte
	// Time is when the producer enqueued the message, by the clock of its database. A source that finds no such
	// time takes the time at which the broker got the message.
	Time time.Time
}

// sum tells messages apart that have the same ID.
func (m Message) sum() idem.Fingerprint { return idem.FingerprintOf([]byte(m.Key), m.Payload) }

// validate returns an error that names the field without which no message runs.
func (m Message) validate() error {
	switch {
	case m.ID == "" || len(m.ID) > 255 || !utf8.ValidString(m.ID):
		return fmt.Errorf("%w: Message.ID is %.300q: 1 to 255 bytes of UTF-8 are allowed", pawl.ErrInvalid, m.ID)
	case m.Time.IsZero():
		return fmt.Errorf("%w: Message.Time is missing", pawl.ErrInvalid)
	}
	return nil
}
