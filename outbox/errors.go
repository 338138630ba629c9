package outbox

import "errors"

// The errors of this package. Test with errors.Is, because each error says more than its sentinel.
var (
	// ErrRefused says that the broker will never take this message, because the message is too large or has no
	// route. The attempt counts, so the message ends dead.
	ErrRefused = errors.New("the broker refused the message")

	// ErrBlocked says that the broker takes no messages from publishers now, or cannot be reached. The attempt does not count. A
	// connection that was lost while the message was under way is another error: the broker may have the message.
	ErrBlocked = errors.New("the broker takes no messages now")

	// ErrUnknown says that the table has no message of this ID: the message was never committed, or was
	// cleaned after the retention.
	ErrUnknown = errors.New("no such message")

	// ErrNotDead says that a message is in another state than dead. Nothing was changed.
	ErrNotDead = errors.New("the message is not dead")
)
