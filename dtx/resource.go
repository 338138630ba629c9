package dtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
)

// Resource is a database that takes part in transactions. A Resource is safe for concurrent use.
type Resource struct {
	name     string
	dialect  dialect.Dialect
	db       *sql.DB
	log      *Log // whose database this is, or nil
	readOnly bool
}

// PostgreSQL returns a database as a resource. The name is 1 to 30 ASCII letters, digits and underscores. Recovery knows
// the database by that name, so all processes use the same name. A pgxpool.Pool is such a database by stdlib.OpenDBFromPool of pgx. The server has to allow
// prepared transactions: max_prepared_transactions is 0 as shipped. Recovery has to connect as the same user, or as a superuser. The database must be the
// primary server, never a standby.
func PostgreSQL(name string, db *sql.DB) *Resource {
	return &Resource{name: name, dialect: dialect.PostgreSQL, db: db}
}

// MySQL returns a database of MySQL 8.0 or MariaDB 10.5, or later, as a resource; see [PostgreSQL] for the name. Server-side
// rollback of silent connections is by wait_timeout, which a branch sets. A server with read_only = 1 is taken for a replica, and refused. A prepared branch of MariaDB is bound to its connection until that ends.
func MySQL(name string, db *sql.DB) *Resource {
	return &Resource{name: name, dialect: dialect.MySQL, db: db}
}

// Resource returns the log's own database as a resource; see [PostgreSQL] for the name. The branch there is committed together with the
// decision, in one local transaction. So that database need not be able to prepare. One such resource may be in a transaction.
//
// SQLite commits to several attached files together only while none is in mode WAL. Else a branch must write only to the file that has the log.
//
// A file of SQLite has one writer. A transaction that waits for a row of another database keeps recovery out of the file meanwhile. So set
// a short time-out for locks there, such as innodb_lock_wait_timeout.
func (l *Log) Resource(name string) *Resource {
	return &Resource{name: name, dialect: l.dialect, db: l.db, log: l}
}

// ReadOnly returns the same database for transactions that only read there. The database refuses writes, and the branch
// ends before the decision, so it is not prepared. Of nil, ReadOnly returns nil, which [New] and [Coordinator.Run] refuse.
func ReadOnly(r *Resource) *Resource {
	if r == nil {
		return nil
	}
	reads := *r
	reads.readOnly, reads.log = true, nil
	return &reads
}

// Name returns the name.
func (r *Resource) Name() string { return r.name }

// prepares reports whether branches there are prepared, so that recovery has to look for them.
func (r *Resource) prepares() bool { return r.log == nil && !r.readOnly }

var names = regexp.MustCompile(`^[A-Za-z0-9_]{1,30}$`)

func (r *Resource) validate() error {
	switch {
	case r == nil || r.db == nil:
		return fmt.Errorf("dtx: %w: a resource has no database", pawl.ErrInvalid)
	case !names.MatchString(r.name):
		return fmt.Errorf("dtx: %w: the name of a resource is %.40q: 1 to 30 letters, digits and underscores are allowed", pawl.ErrInvalid, r.name)
	}
	return nil
}

// owns returns an error if the resource is of another log, whose database does not have the records of this one. Another pool may have the same log.
func (c *Coordinator) owns(ctx context.Context, r *Resource) error {
	if r.log == nil || r.db == c.log.db {
		return nil
	}
	if r.dialect != c.log.dialect {
		return failed("check", foreignLog(r))
	}
	there := *c.log // a decision is written into the table of this log, through the pool of the resource
	there.db = r.db
	attached, err := there.attached(ctx)
	identity := int64(0)
	if err == nil && attached {
		identity, err = there.check(ctx)
	}
	if errors.Is(err, dialect.ErrMissing) || err == nil && identity != c.identity {
		err = foreignLog(r)
	}
	return failed("check", err)
}

func foreignLog(r *Resource) error {
	return fmt.Errorf("%w: the resource %s is the database of another log", pawl.ErrInvalid, r.name)
}

// Check returns an error unless the database can prepare branches, and keeps them over a crash. The error names the setting to change. A standby
// cannot prepare: its error matches [pawl.ErrUnavailable].
func (r *Resource) Check(ctx context.Context) error {
	if err := r.validate(); err != nil {
		return err
	}
	err := r.db.PingContext(ctx)
	table := ""
	if err == nil && r.log != nil { // the branch writes the decision, through this pool
		table = r.log.rows.Name
	}
	if err == nil && !r.readOnly { // else there is nothing to keep
		err = checkSettings(ctx, r.dialect, r.db, flushes(r.dialect, table))
	}
	if err == nil && r.prepares() && r.dialect == dialect.PostgreSQL {
		err = r.checkSlots(ctx)
	}
	if err == nil && r.prepares() {
		_, err = r.list(ctx, 0)
	}
	return failed("check the resource "+r.name, err)
}

func (r *Resource) checkSlots(ctx context.Context) error {
	var slots int
	err := dialect.New(r.dialect).Add("SELECT current_setting('max_prepared_transactions')::bigint").Scan(ctx, r.db, &slots)
	if err == nil && slots == 0 {
		err = fmt.Errorf("%w: the setting max_prepared_transactions of PostgreSQL is 0, so it prepares no transaction; set it to max_connections and restart the server", pawl.ErrUnsupported)
	}
	return err
}

// listed is a prepared branch. Age is how long it has been prepared by the clock of the database, or unknown.
type listed struct {
	branchID
	age time.Duration
}

const unknown time.Duration = -1 // to the database

// list returns the prepared branches of a log. On MariaDB there are also branches whose connection still lives.
func (r *Resource) list(ctx context.Context, identity int64) (all []listed, err error) {
	named, err := r.listNames(ctx, prefix(identity))
	for _, n := range named {
		b, ok := parseBranch(n.String())
		if ok && b.log == identity && (r.dialect == dialect.PostgreSQL || n.format == xaFormat) {
			all = append(all, listed{b, n.age})
		}
	}
	return all, err
}

// branchName is the name of a branch in its database. PostgreSQL has the text only.
type branchName struct {
	global, qualifier string
	format            int
}

func (b branchID) name() branchName {
	return branchName{b.ID.String(), fmt.Sprintf("%x", b.branch), xaFormat}
}

// String is the name as one text.
func (n branchName) String() string {
	if n.qualifier == "" {
		return n.global
	}
	return n.global + "-" + n.qualifier
}

// named is a prepared branch of any program.
type named struct {
	branchName
	age time.Duration
}

// errStandby says that a server does not have the branches and records that a promotion brings. An empty list would end transactions there.
var errStandby = fmt.Errorf("%w: the server is a standby, or has read_only = 1, so it may lack prepared branches and records; the primary has them", pawl.ErrUnavailable)

// primary returns an error if the server of a connection is a standby. A pool may have several servers.
func primary(ctx context.Context, d dialect.Dialect, conn *sql.Conn) error {
	var is bool
	err := dialect.New(d).Add("SELECT ", dialect.Primary(d)).Scan(ctx, conn, &is)
	if err == nil && !is {
		err = errStandby
	}
	return err
}

// listNames returns the prepared branches whose names have a prefix, and on MySQL all others too.
func (r *Resource) listNames(ctx context.Context, prefix string) (all []named, err error) {
	s, db := dialect.New(r.dialect), dialect.DB(r.db)
	if r.dialect == dialect.PostgreSQL { // the row of a standby comes first: a promotion has all branches before its end
		s.Add("SELECT 0::bigint, -1, 0, '' WHERE NOT (", dialect.Primary(r.dialect), ") UNION ALL ")
		s.Add("SELECT (extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint, 0, 0, gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE ").Value(prefix + "%")
	} else {
		conn, err := r.db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Close() //nolint:errcheck // back to the pool
		if err := primary(ctx, r.dialect, conn); err != nil {
			return nil, err
		}
		s.Add("XA RECOVER")
		db = conn
	}
	query, args, err := s.Build()
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var first int64
		var length, rest int
		var name string
		if err := rows.Scan(&first, &length, &rest, &name); err != nil {
			return nil, err
		}
		switch {
		case length < 0:
			return nil, errStandby
		case r.dialect == dialect.PostgreSQL:
			all = append(all, named{branchName{global: name}, max(time.Duration(first)*time.Millisecond, 0)})
		case length <= len(name):
			all = append(all, named{branchName{name[:length], name[length:], int(first)}, unknown})
		}
	}
	return all, rows.Err()
}

// xaFormat is the format of the names of our branches: "pawl" as a number.
const xaFormat = 0x7061776c

// xid is the name of a branch as statements of XA have it. The name has letters, digits and hyphens only.
func (n branchName) xid() string { return fmt.Sprintf("'%s','%s',%d", n.global, n.qualifier, n.format) }

// finishing returns the statement that ends a prepared branch.
func (r *Resource) finishing(b branchName, commit bool) string {
	verb := map[bool]string{true: "COMMIT", false: "ROLLBACK"}[commit]
	if r.dialect == dialect.PostgreSQL {
		return fmt.Sprintf("%s PREPARED '%v'", verb, b)
	}
	return "XA " + verb + " " + b.xid()
}

// errOwned says that the connection that prepared the branch lives, or that another connection finishes the branch now.
var errOwned = errors.New("another connection has the branch")

// errGone says that nothing is prepared under the name: another connection has finished the branch, or the branch was never prepared.
var errGone = errors.New("the branch is gone")

// finish ends a prepared branch through any connection.
func (r *Resource) finish(ctx context.Context, b branchName, commit bool) error {
	_, err := r.db.ExecContext(ctx, r.finishing(b, commit))
	return r.finished(ctx, b, err)
}

// settle is finish, again while another connection has the branch. The server needs a moment to see that a connection has ended. A branch
// that is gone is settled.
func (r *Resource) settle(ctx context.Context, b branchName, commit bool) error {
	owned := func(err error) bool { return errors.Is(err, errOwned) || dialect.Lost(err) }
	return dialect.Repeat(ctx, owned, func() error {
		err := r.finish(ctx, b, commit)
		if errors.Is(err, errGone) {
			return nil
		}
		return err
	})
}

// finished judges the answer to finishing. MariaDB says that there is no such branch while another connection has it. So the
// list decides whether the branch is gone.
func (r *Resource) finished(ctx context.Context, b branchName, err error) error {
	switch {
	case r.dialect == dialect.PostgreSQL && dialect.Busy(err):
		return errOwned
	case !dialect.Unknown(err):
		return err
	case r.dialect == dialect.PostgreSQL:
		return errGone
	}
	all, err := r.listNames(ctx, b.global)
	switch {
	case err != nil:
		return err
	case slices.ContainsFunc(all, func(other named) bool { return other.branchName == b }):
		return errOwned
	}
	return errGone
}
