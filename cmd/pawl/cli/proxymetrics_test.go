package cli

import (
	"net/http/httptest"
	"testing"

	"github.com/pawl-go/pawl/lb"
)

// lockedOut is a reader of metrics that looks whether the service is locked while the reader reads.
type lockedOut struct {
	*httptest.ResponseRecorder
	s      *proxyService
	locked bool
}

func (w *lockedOut) Write(text []byte) (int, error) {
	if w.s.mu.TryLock() {
		w.s.mu.Unlock()
	} else {
		w.locked = true
	}
	return w.ResponseRecorder.Write(text)
}

// TestProxy_metrics_lock_nothing: a slow reader of metrics delays no request.
func TestProxy_metrics_lock_nothing(t *testing.T) {
	set, err := lb.NewSet(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &proxyService{set: set, members: map[string]*memberCounts{}}
	s.counts.init()
	w := &lockedOut{ResponseRecorder: httptest.NewRecorder(), s: s}
	s.serveMetrics(w, nil)
	if w.locked || w.Body.Len() == 0 {
		t.Errorf("locked: %v, after %d bytes", w.locked, w.Body.Len())
	}
}
