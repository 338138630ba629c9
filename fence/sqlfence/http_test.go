package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/httpfence"
	"github.com/pawl-go/pawl/internal/fencetest"
)

// A web server in front of a database turns late holders away. The handler checks again in the
// transaction that writes, as httpfence says it has to.
func TestBehindHTTP(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.exec(t, "INSERT INTO "+d.own.Name+" (id) VALUES (?)", []byte("it"))
		update := d.placeholders("UPDATE " + d.own.Name + " SET " + d.quoted("order") + " = ? WHERE id = ?")
		put := func(r *http.Request) error {
			token, _ := fence.FromContext(r.Context(), "it")
			return d.transact(r.Context(), sql.LevelDefault, func(tx *sql.Tx) error {
				if err := d.marks.Check(r.Context(), tx, "it", token); err != nil {
					return err
				}
				_, err := tx.ExecContext(r.Context(), update, int64(token), []byte("it"))
				return err
			})
		}
		server := httptest.NewServer(httpfence.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch err := put(r); {
			case errors.Is(err, fence.ErrStale): // it was overtaken since it was let in
				w.WriteHeader(http.StatusConflict)
			case err != nil:
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}), d.marks.Guard(d), func(*http.Request) string { return "it" }, nil))
		defer server.Close()
		client := server.Client()
		client.Transport = &httpfence.Transport{Base: client.Transport}
		err := fencetest.Race(t.Context(), fencetest.Resource{
			Early: true,
			Write: func(ctx context.Context, token fence.Token) error {
				r, err := http.NewRequestWithContext(fence.WithToken(ctx, "it", token), http.MethodPut, server.URL, nil)
				if err != nil {
					return err
				}
				reply, err := client.Do(r)
				if err != nil {
					return err
				}
				defer reply.Body.Close()
				switch reply.StatusCode {
				case http.StatusOK:
					return nil
				case http.StatusConflict:
					return fence.ErrStale
				}
				if err := httpfence.CheckResponse(reply); err != nil {
					return err
				}
				return errors.New(reply.Status)
			},
			Read: func(ctx context.Context) (fence.Token, error) {
				row, err := d.row(ctx, "it")
				return fence.Token(row[0]), err
			},
		}, 6, 25)
		if err != nil {
			t.Error(err)
		}
	})
}
