package webhook

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestEncodedAttributes: the attributes of the event are encoded on the wire as CloudEvents demands, and the receiver gives the originals back. A sender that does not
// encode is understood, too.
func TestEncodedAttributes(t *testing.T) {
	h := newHook(t, Options{Secrets: [][]byte{secret}})
	want := map[string]string{"Ce-Id": "a%2541", "Ce-Partitionkey": "50%25%20%C3%BC", "Ce-Type": "%22order%22"}
	sent := event("a%41")
	sent.Key, sent.Topic = "50% ü", `"order"`
	older := false
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range want {
			if got := r.Header.Get(name); got != value {
				t.Errorf("%s is %q: want %q", name, got, value)
			}
		}
		if older {
			r.Header.Set("Ce-Id", sent.ID)
			r.Header.Set("Ce-Partitionkey", sent.Key)
		}
		h.ServeHTTP(w, r)
	}))
	defer between.Close()
	h.url = between.URL
	for range 2 {
		result := h.send(t, sent, secret)
		d := h.next(t)
		if m := d.Message(); m.ID != sent.ID || m.Key != sent.Key || m.Topic != sent.Topic {
			t.Errorf("got %q, %q, %q", m.ID, m.Key, m.Topic)
		}
		if err := errors.Join(d.Ack(t.Context()), <-result); err != nil {
			t.Error(err)
		}
		older = true
	}
}
