package dtx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
)

// otherProtocols: a branch that another protocol decides stays until it is finished, and no coordinator touches the branch.
func otherProtocols(t *testing.T) {
	b := newBank(t, [2]place{postgres(t, "postgres"), mariadb(t)})
	c := b.coordinator(t)
	before := b.sums(t)
	stem := fmt.Sprintf("other_%d-", time.Now().UnixNano())
	for i, r := range b.parts {
		work := func(ctx context.Context, db dialect.DB) error {
			_, err := db.ExecContext(ctx, fmt.Sprintf("UPDATE %s_%d SET n = n + 1 WHERE id = 0", b.table, i))
			return err
		}
		for _, commit := range []bool{true, false} {
			name := stem + fmt.Sprintf("%d_%v", i, commit)
			if err := r.Prepare(t.Context(), name, work); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Recover(t.Context()); err != nil {
				t.Error(err)
			}
			if all, err := r.Prepared(t.Context(), stem); err != nil || !slices.Equal(all, []string{name}) {
				t.Errorf("%s: %v, %v", name, all, err)
			}
			for range 2 {
				if err := r.Finish(t.Context(), name, commit); err != nil {
					t.Error(err)
				}
			}
		}
		enough := errors.New("enough")
		if err := r.Prepare(t.Context(), stem+"no", func(ctx context.Context, db dialect.DB) error { return errors.Join(work(ctx, db), enough) }); !errors.Is(err, enough) {
			t.Error(err)
		}
		for _, name := range []string{"", "a b", strings.Repeat("x", 65), "pawl-1-2-3-0"} {
			if err := r.Prepare(t.Context(), name, work); !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%q: %v", name, err)
			}
		}
		if err := dtx.ReadOnly(r).Prepare(t.Context(), stem+"read", work); !errors.Is(err, pawl.ErrInvalid) {
			t.Error(err)
		}
		if all, err := r.Prepared(t.Context(), stem); err != nil || len(all) > 0 {
			t.Error(all, err)
		}
	}
	if after := b.sums(t); after != [2]int{before[0] + 1, before[1] + 1} {
		t.Errorf("%v, and before %v", after, before)
	}
}

// TestFlushed: a log in a file whose connections do not flush is refused. Mode WAL does not flush by default.
func TestFlushed(t *testing.T) {
	t.Parallel()
	for parameters, works := range map[string]bool{"": true, "&_pragma=journal_mode(wal)": false, "&_pragma=synchronous(off)": false, "&_pragma=journal_mode(wal)&_pragma=synchronous(full)": true} {
		db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "log.db"))+"?_pragma=busy_timeout(20000)"+parameters)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		log, err := dtx.NewLog(dialect.SQLite, db, nil)
		if err == nil {
			err = log.Migrate(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		err = log.Check(t.Context())
		if works != (err == nil) || !works && (!errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(err.Error(), "the setting synchronous of SQLite")) {
			t.Errorf("%q: %v", parameters, err)
		}
	}
}
