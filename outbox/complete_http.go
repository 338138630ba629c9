package outbox

import (
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/pawl-go/pawl"
)

// CompletionHandler calls [Table.Complete] for consumers that reply by HTTP: a POST with a JSON body of up to 512 KiB,
// such as {"ids": ["…"]}. Authorize says whether the request may complete messages; after an error the reply
// is 403. Other replies are 204 for success, 400 for bad input, 404 for an ID that the table lacks, and 503 for trouble.
// A consumer repeats the request after 503, and after no reply.
//
// A consumer that replies by messages needs no handler: call Complete with Message.ID, and acknowledge the reply after that.
func CompletionHandler(t *Table, db *sql.DB, authorize func(*http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "only POST is allowed", http.StatusMethodNotAllowed)
			return
		}
		if authorize(r) != nil {
			http.Error(w, "not allowed", http.StatusForbidden)
			return
		}
		var body struct {
			IDs []string `json:"ids"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 512<<10)).Decode(&body); err != nil {
			http.Error(w, `the body is no JSON such as {"ids": ["a"]} of up to 512 KiB`, http.StatusBadRequest)
			return
		}
		switch err := t.Complete(r.Context(), db, body.IDs...); {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case errors.Is(err, pawl.ErrInvalid):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case errors.Is(err, ErrUnknown):
			http.Error(w, err.Error(), http.StatusNotFound)
		default: // whose text is not for others
			http.Error(w, "the database could not do it", http.StatusServiceUnavailable)
		}
	})
}
