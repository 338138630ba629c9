package inbox

import "errors"

// The errors of this package. Test with errors.Is, because each error says more than its sentinel.
var (
	// ErrTooOld says that the time of a message is older than the retention of the inbox. The message did not run,
	// because the note of its first run may be gone. A consumer makes it a dead letter.
	ErrTooOld = errors.New("the message is older than the retention of the inbox")

	// ErrAhead says that the time of a message is more than [MaxAhead] ahead of this machine's clock. The
	// message did not run, because its note would be gone too soon. One of both clocks is wrong.
	ErrAhead = errors.New("the time of the message is ahead of the clock")

	// ErrGone is for sources: the broker does not have the message any more. The message does not run.
	ErrGone = errors.New("the broker has the message no more")

	// ErrTaken is for sources: Dead did nothing, because another reader has the message, or the broker delivers the message again.
	ErrTaken = errors.New("another reader has the message, or the broker delivers it again")

	// ErrRefused is for handlers: a message whose handler fails with an error that matches ErrRefused becomes a
	// dead letter at once.
	ErrRefused = errors.New("the handler refused the message")
)
