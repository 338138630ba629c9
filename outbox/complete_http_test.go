package outbox_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/outbox"
)

func TestCompletionHandler(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.enqueue(t, outbox.Message{ID: "a", Topic: "t"}, outbox.Message{ID: "b", Topic: "t"})
		handler := outbox.CompletionHandler(d.table, d.db, func(r *http.Request) error {
			if r.Header.Get("Authorization") != "stock" {
				return errors.New("not known here")
			}
			return nil
		})
		for _, c := range []struct {
			method, who, body string
			want              int
		}{
			{"GET", "stock", "", http.StatusMethodNotAllowed}, {"POST", "", `{"ids": ["a"]}`, http.StatusForbidden},
			{"POST", "stock", `{"ids": []}`, http.StatusBadRequest}, {"POST", "stock", `{"ids"`, http.StatusBadRequest},
			{"POST", "stock", `{"ids": ["` + strings.Repeat("x", 600<<10) + `"]}`, http.StatusBadRequest},
			{"POST", "stock", `{"ids": ["gone"]}`, http.StatusNotFound}, {"POST", "stock", `{"ids": ["no\u0000text"]}`, http.StatusNotFound},
		} {
			if is := reply(t, handler, c.method, c.who, c.body); is != c.want {
				t.Errorf("%.60s: %d instead of %d", c.body, is, c.want)
			}
		}
		if !d.is(t, outbox.Pending, "a", "b") {
			t.Error("a refused request has completed messages")
		}
		for range 2 {
			if is := reply(t, handler, "POST", "stock", `{"ids": ["a", "b"]}`); is != http.StatusNoContent {
				t.Error(is)
			}
		}
		if !d.is(t, outbox.Done, "a", "b") {
			t.Error("not done")
		}
		for _, id := range []string{"no\x00text", "no\xfftext", strings.Repeat("x", 256)} { // that no message has
			_, status := d.table.Status(t.Context(), d.db, id)
			for _, err := range []error{d.table.Complete(t.Context(), d.db, "a", id), d.table.Requeue(t.Context(), d.db, id), status} {
				if !errors.Is(err, outbox.ErrUnknown) {
					t.Errorf("%.10q: %v", id, err)
				}
			}
		}
		d.db.Close() //nolint:errcheck // the trouble
		if is := reply(t, handler, "POST", "stock", `{"ids": ["a"]}`); is != http.StatusServiceUnavailable {
			t.Error(is)
		}
	})
}

// reply returns the status of a reply.
func reply(t *testing.T, handler http.Handler, method, who, body string) int {
	r := httptest.NewRequestWithContext(t.Context(), method, "/", strings.NewReader(body))
	r.Header.Set("Authorization", who)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code
}
