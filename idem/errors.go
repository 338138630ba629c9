package idem

import "errors"

// The errors of this package. Test with errors.Is, because each error says more than its sentinel.
var (
	// ErrReused says that the key was used before, for a request with another fingerprint.
	// Nothing was done.
	ErrReused = errors.New("the key was used for another request")

	// ErrInFlight says that another caller works on the key now, and that this caller was
	// told not to wait, or waited for as long as it was told. Nothing was done.
	ErrInFlight = errors.New("another caller works on the key")

	// ErrTakenOver says that the caller no longer owns the key: its lease ended, and another
	// caller has taken the key over or completed it. The store refused the caller's write.
	ErrTakenOver = errors.New("another caller has taken over the key")
)
