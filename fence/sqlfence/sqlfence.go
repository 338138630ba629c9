// Package sqlfence makes fencing tokens count in a SQL database: PostgreSQL,
// MySQL, MariaDB or SQLite, through database/sql.
//
// [Marks] is for all writes of a transaction: one row for each protected
// resource remembers the newest token. [Table] is for the rows of a table of
// your own. That table has a column for the token, or for a version if nobody
// locks and the first writer wins. Each is one statement, so one round trip.
//
// # What it protects
//
// The check and the write are one step because they are one transaction. Check first, in the
// transaction that writes, and the row of the mark stays locked until that ends. A writer with
// another token waits, and its token is then compared with the committed mark. A rollback takes
// the mark back together with the writes. With [Table], check and write are even one statement.
// Any isolation level will do. From REPEATABLE READ on, PostgreSQL may answer with a
// serialization failure (40001) instead, and MySQL with a deadlock at any level. Then nothing
// was written, and the caller must repeat the transaction.
//
// # What it does not protect
//
//   - Writes without a check. All writers of the resource have to check.
//   - Effects outside of the transaction: a mail, a file, another database; and
//     Check without a transaction, which is a step of its own.
//   - Anything, after the marks were lost: any first token passes then. That is so for a
//     deleted row, and for a database that was restored from a backup. That is so after a
//     failover to a replica that lags behind.
//   - Two locks for one resource: their tokens cannot be compared.
//
// Equal tokens pass: it is the same holder, which may write again and again. An error of the
// database that came while ctx ended or the connection broke says nothing. Outside of a
// transaction the statement may still take effect, even later.
package sqlfence

import (
	"context"

	"github.com/pawl-go/pawl/dialect"
)

// Dialect is the SQL that a database speaks.
type Dialect = dialect.Dialect

const (
	// PostgreSQL is 9.5 or later, or a database with the same SQL.
	PostgreSQL = dialect.PostgreSQL
	// MySQL is MySQL 5.7 or MariaDB 10.2, or later.
	MySQL = dialect.MySQL
	// SQLite is 3.37 or later.
	SQLite = dialect.SQLite
)

// DB is a *sql.DB, *sql.Tx or *sql.Conn, or a pgx.Tx by package pgxtx.
type DB = dialect.DB

// Columns are names of columns and their values. Values are sent as parameters.
type Columns = dialect.Columns

// ErrName says that a table or column has a name that this package does not put into a
// statement. Names have 1 to 63 ASCII letters, digits and underscores, and do not begin with a
// digit. The name of a table may have a schema and a dot before it. Names are quoted, so
// keywords are well, and on PostgreSQL upper case is not lower case.
var ErrName = dialect.ErrName

// run executes the statement and returns the number of affected rows and, on
// MySQL, the LAST_INSERT_ID that the statement set, or 0.
func run(ctx context.Context, d Dialect, s *dialect.Statement, db DB) (rows, id int64, err error) {
	result, err := s.Exec(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	if d == MySQL {
		if id, err = result.LastInsertId(); err != nil {
			return 0, 0, err
		}
	}
	rows, err = result.RowsAffected()
	return rows, id, err
}
