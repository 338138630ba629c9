package idem

import "errors"

// The errors of this package. Test with errors.Is, because each error says more than its sentinel.
var (
	// ErrReused says that a request with another fingerprint has used the key before.
	// Nothing was done.
	ErrReused = errors.New("the key was used for another request")

	// ErrInFlight says that another caller works on the key now. This caller was told not to
	// wait, or has waited for as long as it was told. Nothing was done.
	ErrInFlight = errors.New("another caller works on the key")

	// ErrTakenOver says that the caller no longer owns the key: its lease ended, and another
	// caller has taken the key over or completed it. The store refused the caller's write.
	ErrTakenOver = errors.New("another caller has taken over the key")

	// ErrUnfinished says that the key has a claim whose function has not returned, although no other
	// transaction works on the key. The function has committed the transaction itself, or the call is inside of
	// the function. Nothing was done, because nobody knows how far the function came. A claim of [Run] counts as done instead.
	ErrUnfinished = errors.New("the key was claimed, and its function has not returned")

	// ErrTooLarge says that a result is longer than [TxOptions].MaxResult or [MaxResult] allows. The
	// result was not kept. The function of [Do] counts as failed.
	ErrTooLarge = errors.New("the result is too large to be kept")
)
