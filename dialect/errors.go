package dialect

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Again reports whether the error says that another transaction was in the way. Such errors are a
// deadlock, a serialization failure, a lock wait time-out, a busy file. Nothing was written.
// The caller may repeat the statement or, after a rollback, the whole
// transaction. An error with an unknown outcome is no such error.
func Again(err error) bool {
	state, number, file := codes(err)
	return slices.Contains([]string{"40001", "40P01"}, state) ||
		slices.Contains([]int64{1205, 1213, 1020}, number) || // lock wait time-out, deadlock, changed since it was read
		slices.Contains([]int64{5, 6}, file&0xff) // busy, locked
}

// Repeat calls fn again while it fails with an error that such reports, as [Again] does, and returns the last error. Repeat ends when ctx ends.
// The pauses are random and grow to 100 ms. So two callers that were in each other's way do not meet again.
func Repeat(ctx context.Context, such func(error) bool, fn func() error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := fn()
		if err == nil || !such(err) || ctx.Err() != nil {
			return err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		if timer.Stop(); ctx.Err() != nil {
			return err
		}
	}
}

// Tries is [Again] for one call of [Repeat] that calls its function n times at most.
func Tries(n int) func(error) bool {
	return func(err error) bool { n--; return n > 0 && Again(err) }
}

// RolledBack reports whether MySQL or MariaDB may have rolled the whole transaction back with this error. The server commits each
// further statement on that connection at once.
func RolledBack(err error) bool {
	_, number, _ := codes(err)
	return number != 0 && Again(err) || number == 1206 // locks fill the buffer pool: a repeat may fail for ever
}

// LockTimeout reports whether the error says that another transaction did not give a lock back in
// time. The statement wrote nothing. On PostgreSQL the transaction goes on only from a savepoint.
func LockTimeout(err error) bool {
	state, number, file := codes(err)
	return state == "55P03" || slices.Contains([]int64{1205, 3572}, number) || file&0xff == 5
}

// OutOfTime reports whether the error says that the statement took longer than the server lets a statement take. The
// statement wrote nothing, and may have waited for a lock. On PostgreSQL the transaction goes on only from a savepoint.
func OutOfTime(err error) bool {
	state, number, _ := codes(err)
	return state == "57014" || slices.Contains([]int64{1969, 3024}, number)
}

// Duplicate reports whether the error says that there is another row with the same key, or with the same values
// in a unique index. The statement wrote nothing. On PostgreSQL the transaction goes on only from a savepoint.
func Duplicate(err error) bool {
	state, number, file := codes(err)
	return state == "23505" || slices.Contains([]int64{1062, 1586}, number) || slices.Contains([]int64{1555, 2067, 2579}, file)
}

// ReadOnly reports whether the error says that the server, the transaction or the file takes
// no writes, as a replica does. Nothing was written.
func ReadOnly(err error) bool {
	state, number, file := codes(err)
	return state == "25006" || slices.Contains([]int64{1290, 1792, 1836}, number) || file&0xff == 8
}

// Full reports whether the error says that the disk of the database is full, or fails. Other transactions fail, too, until an operator
// helps. A statement wrote nothing. [MayHaveCommitted] judges a COMMIT. A temporary table of MySQL or MariaDB that is full is no full disk, because
// the table may have a limit of its own.
func Full(err error) bool {
	state, number, file := codes(err)
	if number == 1114 && (strings.Contains(err.Error(), "#sql") || strings.Contains(err.Error(), "(temporary)")) {
		return false
	}
	return slices.Contains([]string{"53100", "58030"}, state) || slices.Contains([]int64{1021, 1030, 1114}, number) || slices.Contains([]int64{10, 13}, file&0xff)
}

// MayHaveCommitted reports whether a database that answered COMMIT with this error may have committed all the same. MySQL and MariaDB commit before
// some errors, as when the disk of the binary log fails. So only known refusals count as a no there. SQLite commits before an error of a flush.
// PostgreSQL refuses only what it has not committed.
func MayHaveCommitted(err error) bool {
	_, number, file := codes(err)
	return number != 0 && !Again(err) && !ReadOnly(err) && number != 3100 && number != 3101 || // group replication has rolled back
		file&0xff == 10 // I/O
}

// untyped are errors of drivers that have no type: ErrInvalidConn of go-sql-driver, and ErrConnClosed of pgx.
var untyped = []string{"invalid connection", "conn closed"}

// Lost reports whether the error says that the connection broke, or that the server was about to end. A server may also have ended
// the connection because it was silent. Then nobody knows whether the statement took effect.
func Lost(err error) bool {
	if state, number, file := codes(err); state != "" || number != 0 || file != 0 { // the database said it
		return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") ||
			state == "25P03" || state == "25P04" || // idle in a transaction, or a long transaction
			number == 1053 || number == 1927 // shutting down, connection killed
	}
	for _, is := range []error{driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, is) {
			return true
		}
	}
	var network net.Error
	return errors.As(err, &network) || slices.ContainsFunc(tree(err), func(e error) bool {
		return slices.Contains(untyped, e.Error())
	})
}

// Said reports whether the database itself refused the statement, so that the statement took no effect. An error
// of a connection that breaks is no such error.
func Said(err error) bool {
	state, number, file := codes(err)
	return (state != "" || number != 0 || file != 0) && !Lost(err)
}

// Unknown reports whether the error says that there is no prepared transaction of this name. MariaDB says so too while another connection
// has the transaction.
func Unknown(err error) bool {
	state, number, _ := codes(err)
	return state == "42704" || number == 1397
}

// Busy reports whether the error says that another connection of PostgreSQL finishes the same prepared transaction now.
func Busy(err error) bool {
	state, _, _ := codes(err)
	return state == "55000" || state == "55006"
}

// codes finds the code of the database in an error of any driver. That is the SQLSTATE of
// PostgreSQL, the number of MySQL, or the extended code of SQLite. Drivers agree on no interface,
// so codes looks at the shape. Errors of pgx and lib/pq have a method SQLState. Those of go-sql-driver
// have a field Number. Those of SQLite have a method or field ExtendedCode, or else Code. Errors of other programs
// have such codes, too, so the path of a driver's package must name its database.
func codes(err error) (state string, number, file int64) {
	for _, e := range tree(err) {
		if s, ok := e.(interface{ SQLState() string }); ok {
			return s.SQLState(), 0, 0
		}
		v := reflect.ValueOf(e)
		of := v.Type()
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch s := reflect.Indirect(v); {
		case strings.Contains(of.PkgPath(), "mysql") && s.Kind() == reflect.Struct:
			if n := s.FieldByName("Number"); n.IsValid() && n.Kind() == reflect.Uint16 {
				return "", int64(n.Uint()), 0
			}
		case strings.Contains(of.PkgPath(), "sqlite"):
			for _, name := range []string{"ExtendedCode", "Code"} {
				if n, ok := integer(v, name); ok {
					return "", 0, n
				}
			}
		}
	}
	return "", 0, 0
}

// integer returns what a method without parameters or a field of this name has.
func integer(v reflect.Value, name string) (int64, bool) {
	n := v.MethodByName(name)
	switch s := reflect.Indirect(v); {
	case n.IsValid() && n.Type().NumIn() == 0 && n.Type().NumOut() == 1:
		n = n.Call(nil)[0]
	case s.Kind() == reflect.Struct:
		n = s.FieldByName(name)
	default:
		return 0, false
	}
	switch {
	case n.IsValid() && n.CanInt():
		return n.Int(), true
	case n.IsValid() && n.CanUint():
		return int64(n.Uint()), true
	}
	return 0, false
}

// tree returns the error and all that it wraps.
func tree(err error) (all []error) {
	if err == nil {
		return nil
	}
	all = []error{err}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		all = append(all, tree(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, tree(inner)...)
		}
	}
	return all
}
