package dtx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestDatabases runs all tests of transactions on each pair of databases.
func TestDatabases(t *testing.T) {
	prepares = testservers.Postgres(t, "-c", "max_prepared_transactions=100").Addr
	db, err := postgres(t, "postgres").open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE DATABASE second"); err != nil {
		t.Fatal(err)
	}
	t.Run("late prepare", latePrepare)
	t.Run("lost decision", lostDecision)
	t.Run("doomed", doomed)
	for name, second := range map[string]place{"PostgreSQL": postgres(t, "second"), "MariaDB": mariadb(t)} {
		t.Run("late commit beside "+name, func(t *testing.T) { lateCommit(t, second) })
	}
	t.Run("other protocols", otherProtocols)
	t.Run("hangs", hangs)
	t.Run("busy", busy)
	t.Run("hanging log", hangingLog)
	t.Run("small pool", smallPool)
	t.Run("exhausted", exhausted)
	t.Run("hindered", hindered)
	t.Run("turns", turns)
	t.Run("lost logs", lostLogs)
	t.Run("rights", rights)
	t.Run("over", over)
	t.Run("counts", counts)
	t.Run("closed", closed)
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, shape.places(t))
			t.Run("run", b.run)
			t.Run("failures", b.failures)
			t.Run("alone", b.alone)
			t.Run("implicit commits", b.implicitCommits)
			t.Run("foreign", b.foreign)
			t.Run("beside recovery", b.besideRecovery)
			t.Run("resolve", b.resolve)
			t.Run("interfere", b.interfere)
			t.Run("crashes", b.crashes)
			t.Run("killed", b.killed)
			if b.places[0].Dialect != dialect.SQLite { // whose file has one writer: a fence waits for the transaction
				t.Run("fenced", b.fencedRow)
			}
		})
	}
}

// tidy fails the test if the log has rows, or a database has prepared branches of this bank.
func (b *bank) tidy(t *testing.T) {
	t.Helper()
	var n int
	if err := b.dbs[0].QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+b.logTable()+"_decided").Scan(&n); err != nil || n > 0 {
		t.Errorf("the log has %d records: %v", n, err)
	}
	if n := b.prepared(t); n > 0 {
		t.Errorf("%d branches are prepared", n)
	}
}

// prepared is how many branches are prepared.
func (b *bank) prepared(t *testing.T) (n int) {
	t.Helper()
	var log int64
	if err := b.dbs[0].QueryRowContext(t.Context(), "SELECT began FROM "+b.logTable()+" WHERE id = 0").Scan(&log); err != nil {
		t.Fatal(err)
	}
	for i, db := range b.dbs {
		query := map[string]string{"pgx": "SELECT 0, 0, 0, gid FROM pg_prepared_xacts WHERE database = current_database()", "mysql": "XA RECOVER"}[driverOf(b.places[i])]
		if query == "" {
			continue
		}
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var kind, length, rest int
			var name string
			if err := rows.Scan(&kind, &length, &rest, &name); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, fmt.Sprintf("pawl-%x-", log)) {
				n++
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// run commits, and the books balance.
func (b *bank) run(t *testing.T) {
	c := b.patient(t)
	before := b.sums(t)
	for i := range 5 {
		if err := c.Run(t.Context(), b.move(i%accounts, 0, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if is := b.sums(t); is[0] != before[0]-5 || is[1] != before[1]+5 {
		t.Errorf("after 5 transactions: %v, not %v", is, before)
	}
	read := func(ctx context.Context, tx *dtx.Tx) error {
		rows, err := tx.On(b.parts[0]).QueryContext(ctx, "SELECT n FROM "+b.table+"_0")
		if err == nil {
			err = rows.Close()
		}
		if err == nil {
			_, err = tx.On(b.parts[1]).ExecContext(ctx, "UPDATE "+b.table+"_1 SET n = n + 1 WHERE id = 0")
		}
		return err
	}
	if err := c.Run(t.Context(), read, dtx.ReadOnly(b.parts[0]), b.parts[1]); err != nil {
		t.Error(err)
	}
	one := func(ctx context.Context, tx *dtx.Tx) error {
		_, err := tx.On(b.parts[0]).ExecContext(ctx, "UPDATE "+b.table+"_0 SET n = n - 1 WHERE id = 0")
		return err
	}
	if err := c.Run(t.Context(), one, b.parts[0]); err != nil {
		t.Error(err)
	}
	if is := b.sums(t); is[0] != before[0]-6 || is[1] != before[1]+6 {
		t.Errorf("after a branch that only reads, and a single one: %v, not %v", is, before)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	b.tidy(t)
	if err := c.Run(t.Context(), one); !errors.Is(err, pawl.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// besideRecovery: recovery in the same process and in another touches no transaction that runs.
func (b *bank) besideRecovery(t *testing.T) {
	c, other := b.patient(t), b.patient(t)
	before := b.sums(t)
	const workers, each = 4, 15
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			for range each {
				if err := c.Run(t.Context(), b.move(i, i, 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	for open := true; open; {
		for _, c := range []*dtx.Coordinator{c, other} {
			if r, err := c.Recover(t.Context()); err != nil || len(r.Unknown) > 0 || r.RolledBack > 0 {
				t.Errorf("%+v, %v", r, err)
			}
		}
		select {
		case <-done:
			open = false
		default:
		}
	}
	if is := b.sums(t); is[0] != before[0]-workers*each || is[1] != before[1]+workers*each {
		t.Errorf("%v, and before %v", is, before)
	}
}

// failures abort, and change nothing.
func (b *bank) failures(t *testing.T) {
	c := b.coordinator(t)
	before := b.sums(t)
	own := errors.New("not today")
	failures := map[string]func(ctx context.Context, cancel func(), tx *dtx.Tx) error{
		"an error": func(context.Context, func(), *dtx.Tx) error { return own },
		"an error that is swallowed": func(ctx context.Context, _ func(), tx *dtx.Tx) error {
			tx.On(b.parts[1]).ExecContext(ctx, "BEGIN") //nolint:errcheck // that is the test
			return nil
		},
		"an ended context": func(_ context.Context, cancel func(), _ *dtx.Tx) error { cancel(); return nil },
		"a resource without a branch": func(ctx context.Context, _ func(), tx *dtx.Tx) error {
			_, err := tx.On(nil).ExecContext(ctx, "SELECT 1")
			return err
		},
		"rows that are left open": func(ctx context.Context, _ func(), tx *dtx.Tx) error {
			_, err := tx.On(b.parts[1]).QueryContext(ctx, "SELECT n FROM "+b.table+"_1") //nolint:sqlclosecheck,rowserrcheck // that is the test
			return err
		},
		"an error beside rows": func(ctx context.Context, _ func(), tx *dtx.Tx) error {
			tx.On(b.parts[1]).QueryContext(ctx, "SELECT n FROM "+b.table+"_1") //nolint:errcheck,sqlclosecheck,rowserrcheck // as above
			return own
		},
		"a lost connection": func(ctx context.Context, _ func(), tx *dtx.Tx) error {
			kill := map[string]string{"pgx": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}[driverOf(b.places[1])]
			tx.On(b.parts[1]).ExecContext(ctx, kill) //nolint:errcheck // as above
			return nil
		},
	}
	maps.Copy(failures, b.ended(t))
	for name, fail := range failures {
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Run(ctx, func(ctx context.Context, tx *dtx.Tx) error {
			if err := b.move(0, 0, 7)(ctx, tx); err != nil {
				return err
			}
			return fail(ctx, cancel, tx)
		})
		cancel()
		var whole *dtx.Error
		if !errors.Is(err, dtx.ErrAborted) || !errors.As(err, &whole) || whole.ID.String() == "" {
			t.Errorf("%s: %v", name, err)
		}
		if is := b.sums(t); is != before {
			t.Errorf("%s: %v, not %v", name, is, before)
		}
		if name == "an error" && !errors.Is(err, own) {
			t.Errorf("%s: %v", name, err)
		}
	}
	func() {
		defer func() { recover() }()                                                                              //nolint:errcheck // that is the test
		c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error { b.move(0, 0, 7)(ctx, tx); panic("no") }) //nolint:errcheck // as above
	}()
	if is := b.sums(t); is != before {
		t.Errorf("after a panic: %v, not %v", is, before)
	}
	b.tidy(t)
}

// doomed: nothing was asked to prepare a branch that cannot be committed. So the coordinator keeps no row in the log for that branch.
func doomed(t *testing.T) {
	t.Parallel()
	for name, places := range map[string][2]place{"PostgreSQL": {postgres(t, "postgres"), postgres(t, "second")}, "MariaDB": {mariadb(t), mariadb(t)}} {
		b := newBank(t, places)
		c, err := dtx.New(t.Context(), b.log, b.parts, &dtx.Options{Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error {
			tx.On(b.parts[1]).ExecContext(ctx, "BEGIN") //nolint:errcheck // that is the test
			return nil
		})
		if !errors.Is(err, dtx.ErrAborted) || !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if rows, beats := b.count(t, b.table+" WHERE id > 0"), b.count(t, b.table+"_beats"); rows+beats > 0 {
			t.Errorf("%s: after Close the log has %d coordinators and the beats of %d", name, rows, beats)
		}
	}
}

// implicitCommits: a statement before which MariaDB commits fails in each kind of branch, and so the branch is rolled back. A caller that does not look
// cannot commit either. Temporary tables are no such statements.
func (b *bank) implicitCommits(t *testing.T) {
	if b.places[0].Dialect != dialect.MySQL {
		return
	}
	c := b.patient(t)
	before := b.sums(t)
	take := func(statements ...string) func(context.Context, *dtx.Tx) error {
		return func(ctx context.Context, tx *dtx.Tx) error {
			first := tx.On(b.parts[0])
			_, err := first.ExecContext(ctx, "UPDATE "+b.table+"_0 SET n = n - 1 WHERE id = 0")
			for _, statement := range statements {
				if _, failed := first.ExecContext(ctx, statement); failed != nil && !errors.Is(failed, pawl.ErrInvalid) {
					t.Errorf("%s: %v", statement, failed)
				}
			}
			return err
		}
	}
	for _, parts := range [][]*dtx.Resource{b.parts[:1], b.parts} {
		for i, statement := range []string{"CREATE TABLE %s_new (n int)", "/* a\ncomment */ alter table %s_0 COMMENT = 'x'", "# a comment\n-- another\n\tDROP TABLE IF EXISTS %s_old",
			"/*!40000 ALTER TABLE %s_0 COMMENT = 'y' */", "SET STATEMENT max_statement_time = 60 FOR CREATE TABLE %s_set (n int)",
			"set statement lc_time_names = 'en_US', max_statement_time = 60 for /* now */ COMMIT -- %s", "SET @a = 'it''s, x', autocommit = 1 -- %s", "SET @%s = 1, SESSION `autocommit` = 1"} {
			statement = fmt.Sprintf(statement, b.table)
			err := c.Run(t.Context(), take(statement), parts...)
			if !errors.Is(err, dtx.ErrAborted) || !errors.Is(err, pawl.ErrInvalid) {
				t.Errorf("%d branches, statement %d: %v", len(parts), i, err)
			}
			if is := b.sums(t); is != before {
				t.Errorf("%d branches, statement %d: %v, not %v", len(parts), i, is, before)
				before = is
			}
		}
	}
	if err := c.Run(t.Context(), take("CREATE TEMPORARY TABLE "+b.table+"_t (n int)", "DROP TEMPORARY TABLE "+b.table+"_t", "SET @a = 'x, autocommit = 1', @b = @@autocommit",
		"SET STATEMENT lc_time_names = 'en_US' FOR UPDATE "+b.table+"_0 SET n = n WHERE id = 1"), b.parts[0]); err != nil {
		t.Error(err)
	}
	if is := b.sums(t); is != [2]int{before[0] - 1, before[1]} {
		t.Errorf("after temporary tables: %v, and before %v", is, before)
	}
}

// fencedRow: a coordinator that recovery takes for dead decides nothing, and goes on with its next transaction.
func (b *bank) fencedRow(t *testing.T) {
	c := b.patient(t)
	before := b.sums(t)
	err := c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error {
		if err := b.move(0, 0, 7)(ctx, tx); err != nil {
			return err
		}
		_, err := b.dbs[0].ExecContext(ctx, "UPDATE "+b.table+" SET fenced = 1 WHERE id > 0")
		return err
	})
	if !errors.Is(err, dtx.ErrAborted) || !errors.Is(err, dtx.ErrRecovered) {
		t.Errorf("a fenced coordinator: %v", err)
	}
	if is := b.sums(t); is != before {
		t.Errorf("%v, not %v", is, before)
	}
	if err := c.Run(t.Context(), b.move(0, 0, 0)); err != nil {
		t.Error(err)
	}
}

// TestSettings: a server that prepares no transaction is refused with the name of its setting.
func TestSettings(t *testing.T) {
	if os.Getenv("PAWL_TEST_POSTGRES") != "" {
		t.Log("the server was started by others")
		return
	}
	db := testservers.PostgresPool(t, testservers.SharedPostgres(t).Addr)
	log, err := dtx.NewLog(dialect.PostgreSQL, db, &dtx.LogOptions{Table: "settings"})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = dtx.New(t.Context(), log, []*dtx.Resource{dtx.PostgreSQL("bank", db)}, nil)
	if !errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), "max_prepared_transactions") {
		t.Error(err)
	}
	c, err := dtx.New(t.Context(), log, []*dtx.Resource{log.Resource("bank")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	var none sql.NullInt64
	if err := db.QueryRowContext(t.Context(), "SELECT SUM(id) FROM settings").Scan(&none); err != nil || none.Int64 != 0 {
		t.Errorf("rows are left: %v, %v", none, err)
	}
}

func driverOf(p place) string {
	return []string{"", "pgx", "mysql", ""}[p.Dialect]
}
