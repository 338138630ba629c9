package redlockengine

import "github.com/pawl-go/pawl/engine"

// Remembered is how many claims a session has a record of.
func Remembered(s engine.Session) int {
	is := s.(*session)
	is.mu.Lock()
	defer is.mu.Unlock()
	return len(is.claims)
}
