package threephase_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/threephase"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestUnflushed: a log in a file that does not flush is refused, as mode WAL of SQLite is without synchronous = full. An operator reaches the log all the same.
func TestUnflushed(t *testing.T) {
	t.Parallel()
	for mode, flushes := range map[string]bool{"wal": false, "wal)&_pragma=synchronous(full": true, "delete": true} {
		db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "log.db"))+"?_pragma=busy_timeout(20000)&_pragma=journal_mode("+mode+")")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		log, err := threephase.NewLog(dialect.SQLite, db, nil)
		if err == nil {
			err = log.Migrate(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := log.CheckTables(t.Context()); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if err := log.Check(t.Context()); (err == nil) != flushes || err != nil && (!errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(err.Error(), "main.synchronous")) {
			t.Errorf("%s: %v", mode, err)
		}
		a, err := threephase.New(t.Context(), log, "a", map[string]string{"b": "http://b/", "c": "http://c/"}, nil, nil)
		if err == nil {
			err = a.Close(t.Context())
		}
		if (err == nil) != flushes {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

// TestReplica: no agent starts on a log whose server may lack votes. An operator looks on.
func TestReplica(t *testing.T) {
	t.Parallel()
	db := testservers.MariaDBPool(t, testservers.MariaDB(t).Addr) // whose user may write all the same
	log, err := threephase.NewLog(dialect.MySQL, db, nil)
	if err == nil {
		err = log.Migrate(t.Context())
	}
	if err == nil {
		_, err = db.ExecContext(t.Context(), "SET GLOBAL read_only = 1")
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := threephase.New(t.Context(), log, "a", map[string]string{"b": "http://b/", "c": "http://c/"}, nil, nil); !errors.Is(err, pawl.ErrUnavailable) {
		t.Error(err)
	}
	if err := log.CheckTables(t.Context()); err != nil {
		t.Error(err)
	}
}
