package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/pawl-go/pawl"
)

// errReplaced says that the tables were made anew, or restored, while the relay held partitions.
var errReplaced = errors.New("another table has come in the place of the one whose partitions this relay holds")

// identify returns a number that no other table has, and stores a random one if there is none yet. Tables of one name in several databases
// may have one lock store. The number is in the row of the partition 0, in a column that has no other use. So also a table of an
// older version has a place for the number, and a relay needs no further right.
func (t *Table) identify(ctx context.Context, db *sql.DB) (identity int64, err error) {
	read := func() error {
		err := t.new().Add("SELECT beat FROM ").Table(t.parts.Name).Add(" WHERE part = 0").Scan(ctx, db, &identity)
		if errors.Is(err, sql.ErrNoRows) {
			err = fmt.Errorf("%w: table %s has no row 0", pawl.ErrMismatch, t.parts.Name)
		}
		return err
	}
	if err := read(); err != nil || identity != 0 {
		return identity, err
	}
	_, err = t.new().Add("UPDATE ").Table(t.parts.Name).Add(" SET beat = ").Value(1+rand.Int64N(math.MaxInt64)).
		Add(" WHERE part = 0 AND beat = 0").Exec(ctx, db) // relays may do so at once: the first number stays
	if err == nil {
		err = read()
	}
	if err == nil && identity == 0 {
		err = fmt.Errorf("the number of table %s was not kept", t.parts.Name)
	}
	return identity, err
}

// slots is the name under which relays hold the partitions of this table. Programs may name one table with its schema and without. So the
// name has the table for operators only, and relays meet by the number.
func (t *Table) slots(identity int64) string {
	_, name, found := strings.Cut(t.messages.Name, ".")
	if !found {
		name = t.messages.Name
	}
	return fmt.Sprintf("outbox/%s/%016x", strings.ToLower(name), identity)
}
