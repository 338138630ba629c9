package threephase

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// SetStored calls f after each record that an agent has stored, and after each record that an agent finds when it starts.
func SetStored(f func(id ID, state State, elections int, known time.Duration)) {
	stored = func(id ID, r protocol.Record, began time.Time) {
		f(id, State(r.Phase), int(r.Elected), time.Since(began))
	}
}

// Files would take long, and a process of a test never loses its memory alone. All other databases are judged.
func init() {
	checkDurable = func(ctx context.Context, d dialect.Dialect, db *sql.DB, table string) error {
		err := dtx.CheckDurable(ctx, d, db, table)
		if err != nil && strings.Contains(err.Error(), `journal_mode of SQLite is "memory"`) {
			return nil
		}
		return err
	}
}
