package pgxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// standard returns rows of database/sql. Only a *sql.DB makes such rows, so each query has one of its own, which lives
// as long as the rows. The rows were asked for before, and pgx watches the ctx of the query.
func standard(r *rows) (*sql.Rows, error) {
	db := sql.OpenDB(answered{r})
	defer db.Close() //nolint:errcheck // the rows go on
	return db.QueryContext(context.Background(), "")
}

// answered is a connection that has one answer.
type answered struct{ *rows }

var (
	_        driver.Connector      = answered{}
	_        driver.QueryerContext = answered{}
	errOther                       = errors.New("pgxtx: rows have no connection")
)

func (a answered) Connect(context.Context) (driver.Conn, error) { return a, nil }
func (a answered) Driver() driver.Driver                        { return nil }
func (a answered) Prepare(string) (driver.Stmt, error)          { return nil, errOther }
func (a answered) Begin() (driver.Tx, error)                    { return nil, errOther }
func (a answered) Close() error                                 { return nil } // the rows are closed before
func (a answered) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return a.rows, nil
}

// rows are rows of pgx as a driver has them.
type rows struct {
	pgx.Rows
	tx    *Tx
	ahead bool // the first row was read
	begun bool
	end   func() error
}

func (r *rows) Columns() (names []string) {
	for _, f := range r.FieldDescriptions() {
		names = append(names, f.Name)
	}
	return names
}

// Close reads the rest of the answer, so that an error in it is not missed.
func (r *rows) Close() error {
	r.Rows.Close()
	err := r.Err()
	if ending := r.end(); err == nil {
		err = ending
	}
	r.end = func() error { return nil }
	return r.tx.failed(err)
}

func (r *rows) Next(dest []driver.Value) error {
	if r.begun {
		r.ahead = r.Rows.Next()
	}
	if r.begun = true; !r.ahead {
		if err := r.Close(); err != nil {
			return err
		}
		return io.EOF
	}
	types := r.tx.tx.Conn().TypeMap()
	for i, raw := range r.RawValues() {
		if dest[i] = nil; raw == nil {
			continue
		}
		var err error
		if dest[i], err = value(types, r.FieldDescriptions()[i].DataTypeOID, r.FieldDescriptions()[i].Format, raw); err != nil {
			return err
		}
	}
	return nil
}

// formats asks for the binary form of the types that value knows, and for text of all others.
var formats = pgx.QueryResultFormatsByOID{
	pgtype.BoolOID: 1, pgtype.ByteaOID: 1, pgtype.Int2OID: 1, pgtype.Int4OID: 1, pgtype.Int8OID: 1, pgtype.OIDOID: 1,
	pgtype.Float4OID: 1, pgtype.Float8OID: 1, pgtype.DateOID: 1, pgtype.TimestampOID: 1, pgtype.TimestamptzOID: 1,
}

// value returns a value of a type that drivers have.
func value(types *pgtype.Map, oid uint32, format int16, raw []byte) (driver.Value, error) {
	switch oid {
	case pgtype.BoolOID:
		return scan[bool](types, oid, format, raw)
	case pgtype.ByteaOID, pgtype.JSONOID, pgtype.JSONBOID, pgtype.XMLOID:
		return scan[[]byte](types, oid, format, raw)
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return scan[int64](types, oid, format, raw)
	case pgtype.Float4OID, pgtype.Float8OID:
		return scan[float64](types, oid, format, raw)
	case pgtype.OIDOID:
		return valuer[pgtype.Uint32](types, oid, format, raw)
	case pgtype.DateOID:
		return valuer[pgtype.Date](types, oid, format, raw)
	case pgtype.TimestampOID:
		return valuer[pgtype.Timestamp](types, oid, format, raw)
	case pgtype.TimestamptzOID:
		return valuer[pgtype.Timestamptz](types, oid, format, raw)
	}
	return scan[string](types, oid, format, raw)
}

func scan[T any](types *pgtype.Map, oid uint32, format int16, raw []byte) (is T, err error) {
	err = types.Scan(oid, format, raw, &is)
	return is, err
}

// valuer is scan for values that know how drivers have them: times may be infinite.
func valuer[T driver.Valuer](types *pgtype.Map, oid uint32, format int16, raw []byte) (driver.Value, error) {
	is, err := scan[T](types, oid, format, raw)
	if err != nil {
		return nil, err
	}
	return is.Value()
}
