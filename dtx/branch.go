package dtx

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/internal/protocol"
)

// branch is a transaction of one database in a connection of its own, and the [dialect.DB] of the caller.
type branch struct {
	*Resource
	id    branchName
	conn  *sql.Conn
	plain bool // an ordinary transaction, which is never prepared
	voted bool // yes: the branch is prepared, and only the decision ends it
	mu    sync.Mutex
	open  bool  // the caller may send statements
	doom  error // why the transaction can no longer be committed
	asked []query
}

// query is a query of the caller. End closes its rows, and breaks the connection if there are more.
type query struct {
	rows *sql.Rows
	end  context.CancelFunc
}

func (q query) open() bool { _, err := q.rows.Columns(); return err == nil }

// begin begins a branch. A plain one is never prepared. Lease is how long the connection may be silent.
func (r *Resource) begin(ctx context.Context, id branchName, plain bool, lease time.Duration) (*branch, error) {
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	b := &branch{Resource: r, id: id, conn: conn, plain: plain || !r.prepares(), open: true}
	if err := b.exec(ctx, b.beginning(lease)...); err != nil {
		b.release(false)
		return nil, fmt.Errorf("begin a branch on %s: %w", r.name, err)
	}
	return b, nil
}

// beginning returns the statements that begin the branch. A server ends a connection that is silent for the lease. So a frozen
// coordinator keeps neither a prepared branch on MariaDB, nor the lock on its row.
func (b *branch) beginning(lease time.Duration) []string {
	begin := "BEGIN"
	switch b.dialect {
	case dialect.SQLite:
		if b.readOnly {
			return []string{"PRAGMA query_only = 1", begin}
		}
		return []string{"BEGIN IMMEDIATE"}
	case dialect.PostgreSQL:
		if b.readOnly {
			begin += " READ ONLY"
		}
		return []string{fmt.Sprintf("%s; SET LOCAL idle_in_transaction_session_timeout = %d", begin, lease.Milliseconds())}
	}
	switch {
	case b.readOnly:
		begin = "START TRANSACTION READ ONLY"
	case !b.plain:
		begin = "XA START " + b.id.xid()
	}
	seconds := int((lease + time.Second - 1) / time.Second)
	return []string{fmt.Sprintf("SET @pawl_wait = @@SESSION.wait_timeout, SESSION wait_timeout = %d", seconds), begin}
}

func (b *branch) exec(ctx context.Context, statements ...string) error {
	for _, query := range statements {
		if _, err := b.conn.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

// begins matches all that may be before the first word of a statement. MySQL and MariaDB run the text of a comment with an exclamation
// mark, as in a dump. Of such a comment only the first characters count as spaces. MariaDB runs any statement behind SET STATEMENT and values.
const (
	spaces = `(?:\s|/\*M?!\d*|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/|(?:--|#)[^\n]*\n)*`
	values = `(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"])*` // of variables: strings are whole
	begins = `(?is)^` + spaces + `(?:SET\b` + spaces + `STATEMENT\b` + values + `\bFOR\b` + spaces + `)?`
)

// ending matches statements that would end the branch behind the coordinator's back.
var (
	ending  = regexp.MustCompile(begins + `(BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|ROLLBACK|PREPARE\s+TRANSACTION|XA)\b`)
	partial = regexp.MustCompile(begins + `ROLLBACK\s+((WORK|TRANSACTION)\s+)?TO\b`)
)

// implicit matches statements before which MySQL and MariaDB commit without a word. Temporary tables are made and dropped without a commit. In
// a branch of XA the server refuses these statements, and in an ordinary transaction it does not. A SET may also read a column or a variable of such
// a name, so behind a comma the name has to be assigned.
var (
	implicit = regexp.MustCompile(begins + `((?:ALTER|CREATE|DROP|RENAME|TRUNCATE|GRANT|REVOKE|LOCK|UNLOCK|FLUSH|RESET|INSTALL|UNINSTALL|SHUTDOWN|` +
		`START|STOP|CHANGE|BACKUP|CLONE|IMPORT|RESTART|CACHE\s+INDEX|LOAD\s+INDEX|` +
		`(ANALYZE|CHECK|OPTIMIZE|REPAIR)\s+((LOCAL|NO_WRITE_TO_BINLOG)\s+)?(TABLES?|VIEW))\b|` +
		`SET\b` + spaces + `(PASSWORD\b|(` + values + `,` + spaces + `)?(DEFAULT\s+ROLE\b|PASSWORD` + spaces + `(:?=|FOR\b)|` +
		`(SESSION\s+|LOCAL\s+|@@)?((SESSION|LOCAL)\s*\.\s*)?` + "`?AUTOCOMMIT`?" + spaces + `:?=)))`)
	temporary = regexp.MustCompile(begins + `(CREATE\s+(OR\s+REPLACE\s+)?|DROP\s+)TEMPORARY\b`)
)

// judgeRows judges the queries whose rows are closed, and forgets them.
func (b *branch) judgeRows() {
	b.asked = slices.DeleteFunc(b.asked, func(q query) bool {
		over := !q.open()
		if over {
			b.judge(q.rows.Err()) //nolint:errcheck // the caller has seen it, or has not looked
			q.end()
		}
		return over
	})
}

// may returns an error unless the caller may send a statement.
func (b *branch) may(statement string) error {
	b.judgeRows()
	switch {
	case !b.open:
		return sql.ErrTxDone
	case ending.MatchString(statement) && !partial.MatchString(statement):
		b.doom = fmt.Errorf("%w: the coordinator alone begins and ends a branch: %.40q", pawl.ErrInvalid, statement)
	case b.dialect == dialect.MySQL && implicit.MatchString(statement) && !temporary.MatchString(statement):
		b.doom = fmt.Errorf("%w: MySQL and MariaDB commit the transaction before such a statement: %.40q", pawl.ErrInvalid, statement)
	}
	return b.doom
}

// ExecContext implements [dialect.DB].
func (b *branch) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(query); err != nil {
		return nil, err
	}
	result, err := b.conn.ExecContext(ctx, query, args...)
	return result, b.judge(err)
}

// QueryContext implements [dialect.DB].
func (b *branch) QueryContext(ctx context.Context, statement string, args ...any) (*sql.Rows, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(statement); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	rows, err := b.conn.QueryContext(ctx, statement, args...)
	if err != nil {
		end()
		return nil, b.judge(err)
	}
	b.asked = append(b.asked, query{rows, end})
	return rows, nil
}

// judge remembers an error that has ended the transaction. MySQL rolls back after some errors, such as a deadlock, and the connection would
// commit each further statement. SQLite may roll back after any error. A driver may close the connection of a statement that was cancelled.
func (b *branch) judge(err error) error {
	if dialect.Lost(err) || dialect.RolledBack(err) || b.dialect == dialect.SQLite && err != nil && b.outside() ||
		errors.Is(err, context.Canceled) && b.closed() {
		b.doom = cmp.Or(b.doom, err)
	}
	return err
}

// outside reports whether SQLite has ended the transaction: another can begin.
func (b *branch) outside() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return b.exec(ctx, "BEGIN", "ROLLBACK") == nil
}

// closed asks whether the connection is closed. Rows also have the error of a context that ends just after them, and cost no connection then.
func (b *branch) closed() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return b.conn.PingContext(ctx) != nil
}

// shut ends the caller's use of the branch, and reports why it cannot be committed. Rows that are open would keep the connection for ever.
func (b *branch) shut() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = false
	b.judgeRows()
	for _, q := range b.asked {
		b.doom = cmp.Or(b.doom, fmt.Errorf("%w: the caller has not closed the rows of a query on %s", pawl.ErrInvalid, b.name))
		q.end()
	}
	b.asked = nil
	return b.doom
}

// savepoint fails in a transaction that has failed, and outside of any. PostgreSQL answers to PREPARE TRANSACTION and to COMMIT without an error
// there, and rolls back.
const savepoint = "SAVEPOINT pawl_dtx; "

// vote prepares the branch, and returns what the coordinator hears. A branch that only reads ends. The branch of the
// log's own database stays open.
func (b *branch) vote(ctx context.Context) (protocol.Kind, error) {
	err := b.shut()
	if err != nil { // nothing is sent
		b.undo()
		return protocol.VotedNo, err
	}
	switch {
	case b.log != nil:
		return protocol.VotedReadOnly, nil // the decision is its commit
	case b.readOnly:
		if err = b.exec(ctx, "COMMIT"); err == nil {
			b.release(true)
			return protocol.VotedReadOnly, nil
		}
	case b.dialect == dialect.PostgreSQL:
		err = b.exec(ctx, savepoint+fmt.Sprintf("PREPARE TRANSACTION '%v'", b.id))
	default:
		err = b.exec(ctx, "XA END "+b.id.xid(), "XA PREPARE "+b.id.xid())
	}
	switch {
	case err == nil:
		b.voted = true
		return protocol.VotedYes, nil
	case b.unsure(err):
		b.release(false)
		return protocol.NoAnswer, err
	}
	b.undo()
	return protocol.VotedNo, err
}

// unsure reports whether the server may have run the statement that returned err. That is so unless the server said no, or the
// driver of MySQL says that nothing was sent. ErrBadConn of pgx proves nothing: pgx 5.12 returns it when the answer is lost.
func (b *branch) unsure(err error) bool {
	unsent := b.dialect == dialect.MySQL && errors.Is(err, driver.ErrBadConn)
	return err != nil && !unsent && !dialect.Said(err)
}

// undo rolls back a branch that is not prepared. The server does so when the connection ends. A branch that is prepared
// is left to recovery, because nobody here knows the decision.
func (b *branch) undo() {
	b.shut() //nolint:errcheck // the branch is given up
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var err error
	switch {
	case b.conn == nil:
		return
	case b.voted:
		b.release(false)
		return
	case b.plain || b.dialect != dialect.MySQL:
		err = b.exec(ctx, "ROLLBACK")
	default:
		ended := b.exec(ctx, "XA END "+b.id.xid())
		if err = b.exec(ctx, "XA ROLLBACK "+b.id.xid()); err != nil {
			err = errors.Join(ended, err)
		}
	}
	b.release(err == nil)
}

// commit commits a branch in one phase. Lost says that nobody knows whether the branch is committed, as after a COMMIT that a broken disk failed.
func (b *branch) commit(ctx context.Context) (lost bool, err error) {
	if err := b.shut(); err != nil {
		b.undo()
		return false, err
	}
	query := "COMMIT"
	if b.dialect == dialect.PostgreSQL {
		query = savepoint + query
	}
	err = b.exec(ctx, query)
	lost = b.unsure(err) || dialect.MayHaveCommitted(err)
	if err != nil && !lost {
		b.undo()
		return false, err
	}
	b.release(err == nil)
	return lost, err
}

// end ends a prepared branch, through its own connection if that is well.
func (b *branch) end(ctx context.Context, commit bool) error {
	if b.conn != nil {
		_, err := b.conn.ExecContext(ctx, b.finishing(b.id, commit))
		b.release(err == nil)
		if err == nil {
			return nil
		}
	}
	return b.settle(ctx, b.id, commit)
}

// release gives the connection back. A connection that may have a transaction, or a prepared branch, is closed: it never
// goes back to the pool.
func (b *branch) release(clean bool) {
	if b.conn == nil {
		return
	}
	reset := ""
	switch {
	case b.dialect == dialect.MySQL:
		reset = "SET SESSION wait_timeout = @pawl_wait"
	case b.dialect == dialect.SQLite && b.readOnly:
		reset = "PRAGMA query_only = 0"
	}
	if clean && reset != "" {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		clean = b.exec(ctx, reset) == nil
	}
	if !clean {
		b.conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // that is the error
	}
	b.conn.Close() //nolint:errcheck // nothing is lost
	b.conn = nil
}
