package halfmsg

import (
	"context"
	"database/sql"

	"github.com/pawl-go/pawl/dialect"
)

// mostRemoved is how many rows a DELETE removes at most.
const mostRemoved = 1000

// place is where a row lies in an index that begins with a time. Rows of one second lie in the order of their IDs.
type place struct {
	time int64
	id   string
}

// behind appends the condition that rows lie behind a place, and have a time up to so many seconds before the statement.
func behind(s *dialect.Statement, d dialect.Dialect, column string, after place, seconds int64) *dialect.Statement {
	return s.Name(column).Add(" <= ", dialect.StatementSeconds(d), " - ").Value(seconds).Add(" AND ").Name(column).Add(" >= ").Value(after.time).
		Add(" AND (").Name(column).Add(" > ").Value(after.time).Add(" OR id > ").Value(after.id).Add(")")
}

// places reads up to 1,000 rows in the order of their places.
func places(ctx context.Context, db *sql.DB, s *dialect.Statement, column string) (all []place, ids []string, err error) {
	query, args, err := s.Add(" ORDER BY ").Name(column).Add(", id LIMIT ").Value(mostRemoved).Build()
	if err != nil {
		return nil, nil, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var at place
		if err := rows.Scan(&at.time, &at.id); err != nil {
			return nil, nil, err
		}
		all, ids = append(all, at), append(ids, at.id)
	}
	return all, ids, rows.Err()
}
