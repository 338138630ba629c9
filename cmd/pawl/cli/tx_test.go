//go:build unix

package cli

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
)

// leftover leaves a prepared branch of a transaction whose coordinator the log does not know.
func (s *shop) leftover() dtx.ID {
	s.t.Helper()
	id, leave := s.held()
	leave()
	return id
}

// held is leftover while the connection that prepared the branch still lives. leave ends that connection.
func (s *shop) held() (id dtx.ID, leave func()) {
	t := s.t
	t.Helper()
	c, err := dtx.New(t.Context(), s.log, []*dtx.Resource{dtx.MySQL("stock", s.stock)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	if err := c.Run(t.Context(), func(_ context.Context, tx *dtx.Tx) error { id = tx.ID(); return enough }); !errors.Is(err, enough) {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := s.stock.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	xid := fmt.Sprintf("'%v','0',%d", id, 0x7061776c)
	for _, query := range []string{"XA START " + xid, "INSERT INTO " + s.name + " VALUES (1)", "XA END " + xid, "XA PREPARE " + xid} {
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	return id, func() {
		conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // that is for the branch
		conn.Close()                                           //nolint:errcheck // as above
	}
}

// shop is a log in a file, and a database that takes part.
type shop struct {
	t                *testing.T
	file, name, stem string
	db               *open.Database
	stock            *sql.DB
	log              *dtx.Log
}

func newShop(t *testing.T) *shop {
	s := &shop{t: t, file: "sqlite:" + filepath.Join(t.TempDir(), "log.db"), name: "tx_" + strings.ToLower(rand.Text())}
	s.stem = "stock=mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl"
	_, stderr := s.tx(64, "ls")
	complaint(t, stderr, "(try: pawl tx migrate)")
	for range 2 {
		if stdout, _ := s.tx(0, "migrate"); stdout != s.name+" is ready\n" {
			t.Error(stdout)
		}
	}
	db, err := open.OpenDatabase(t.Context(), s.file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	s.db, s.stock = db, testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr)
	if _, err := s.stock.ExecContext(t.Context(), "CREATE TABLE "+s.name+" (n int) ENGINE=InnoDB"); err != nil {
		t.Fatal(err)
	}
	s.log, err = dtx.NewLog(dialect.SQLite, db.DB, &dtx.LogOptions{Table: s.name})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tx runs pawl tx.
func (s *shop) tx(code int, args ...string) (stdout, stderr string) {
	s.t.Helper()
	return want(s.t, code, "memory:", append([]string{"tx", "--db", s.file, "--table", s.name, "--resource", s.stem}, args...)...)
}

// rows is how many rows are committed.
func (s *shop) rows() (n int) {
	s.t.Helper()
	if err := s.stock.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM "+s.name).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// TestTx_lost: an operator decides a transaction that the log does not know.
func TestTx_lost(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if stdout, _ := s.tx(0, "recover"); stdout != "committed 0, rolled back 0, left 0\n" {
		t.Error(stdout)
	}
	_, stderr := s.tx(64, "recover", "--lease", "0")
	complaint(t, stderr, "--lease is 0s: 1s to 1h0m0s are allowed")
	lost := s.leftover()
	stdout, _ := s.tx(76, "recover", "--lease", "1s", "--within", "2s")
	if !strings.HasPrefix(stdout, "committed 0, rolled back 0, left 1\n") || !strings.Contains(stdout, lost.String()+"  unknown  unknown  stock") {
		t.Error(stdout)
	}
	var v transactionView
	stdout, _ = s.tx(0, "show", lost.String(), "--json")
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || v.State != "unknown" || len(v.Prepared) != 1 || v.Prepared[0].Seconds != nil || v.Decision != nil {
		t.Errorf("%s: %v", stdout, err)
	}
	_, stderr = s.tx(64, "resolve", lost.String(), "--commit")
	complaint(t, stderr, "--reason is needed")
	if stdout, _ = s.tx(0, "resolve", lost.String(), "--commit", "--reason", "the order is\npaid"); !strings.Contains(stdout, "are committed") || s.rows() != 1 {
		t.Errorf("%s%d", stdout, s.rows())
	}
	if stdout, _ = s.tx(0, "ls", "--resolved"); !strings.Contains(stdout, lost.String()+"  commit") || !strings.Contains(stdout, "the order is?paid\n") {
		t.Error(stdout)
	}
	if stdout, _ = s.tx(0, "show", lost.String()); !strings.HasPrefix(stdout, lost.String()+": resolved\n") || !strings.Contains(stdout, "commit, at ") {
		t.Error(stdout)
	}
	_, stderr = s.tx(64, "show", "pawl-1-2-3")
	complaint(t, stderr, "no such transaction")
}

// dies writes the fenced row of a transaction's coordinator, and a record if there are resources.
func (s *shop) dies(id dtx.ID, resources string) {
	s.t.Helper()
	coordinator := "0x" + strings.Split(id.String(), "-")[2]
	queries := []string{"INSERT INTO " + s.name + " (id, fenced, began, name) VALUES (" + coordinator + ", 1, 0, 'shop 7')",
		"INSERT INTO " + s.name + "_beats (id, beat) VALUES (" + coordinator + ", 0)"}
	if resources != "" {
		queries = append(queries, "INSERT INTO "+s.name+"_decided (coordinator, number, decided, resources) VALUES ("+coordinator+", 1, 0, CAST('"+resources+"' AS BLOB))")
	}
	for _, query := range queries {
		if _, err := s.db.DB.ExecContext(s.t.Context(), query); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestTx_dead: the transactions of a dead coordinator, with and without a record.
func TestTx_dead(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for i, record := range []bool{true, false} {
		id := s.leftover()
		s.dies(id, map[bool]string{true: "stock"}[record])
		state := map[bool]string{true: "committing", false: "aborting"}[record]
		if stdout, _ := s.tx(0, "ls"); !strings.Contains(stdout, id.String()+"  "+state+"  unknown  stock     shop 7\n") {
			t.Error(stdout)
		}
		_, stderr := s.tx(64, "resolve", id.String(), map[bool]string{true: "--abort", false: "--commit"}[record], "--reason", "no")
		complaint(t, stderr, "not for an operator to decide")
		if stdout, _ := s.tx(0, "recover"); stdout != fmt.Sprintf("committed %d, rolled back %d, left 0\n", 1-i, i) || s.rows() != 1 {
			t.Errorf("%s%d", stdout, s.rows())
		}
	}
}

// TestTx_unnamed: a recorded commit has branches on a database that the operator has not named. The command does not say that nothing is left,
// and does not wait for what this call cannot finish.
func TestTx_unnamed(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := s.leftover()
	s.dies(id, "bank,stock,till")
	stdout, stderr := s.tx(76, "recover", "--within", "1h")
	if !strings.HasPrefix(stdout, "committed 1, rolled back 0, left 1\n") || !strings.Contains(stdout, id.String()+"  committing  unknown  -         shop 7\n") || s.rows() != 1 {
		t.Errorf("%s%d", stdout, s.rows())
	}
	complaint(t, stderr, "transactions are left, and no --resource is given for bank, till (try: pawl help tx recover)")
	server := testservers.SharedMariaDB(t).Addr
	if stdout, _ = s.tx(0, "recover", "--resource", "bank=mysql://root@"+server+"/pawl", "--resource", "till=mysql://root@"+server+"/pawl"); stdout != "committed 0, rolled back 0, left 0\n" {
		t.Error(stdout)
	}
}

// TestTx_over: a transaction is committed, and its coordinator lives. The command does not say that the transaction is rolled back, and fences
// nobody.
func TestTx_over(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	stock := dtx.MySQL("stock", s.stock)
	c, err := dtx.New(t.Context(), s.log, []*dtx.Resource{stock}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var id dtx.ID
	if err := c.Run(t.Context(), func(ctx context.Context, tx *dtx.Tx) error {
		id = tx.ID()
		_, err := tx.On(stock).ExecContext(ctx, "INSERT INTO "+s.name+" VALUES (1)")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	_, stderr := s.tx(64, "resolve", id.String(), "--abort", "--reason", "too slow")
	complaint(t, stderr, "no such transaction")
	complaint(t, stderr, "Only the rows tell")
	var fenced int
	if err := s.db.DB.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+s.name+" WHERE id > 0 AND fenced <> 0").Scan(&fenced); err != nil || fenced != 0 || s.rows() != 1 {
		t.Errorf("%d coordinators are fenced, and %d rows are there: %v", fenced, s.rows(), err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestTx_owned: MariaDB gives no branch to others while the connection lives that prepared the branch. The command does not say that the branch is
// rolled back.
func TestTx_owned(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id, leave := s.held()
	_, stderr := s.tx(76, "resolve", id.String(), "--abort", "--reason", "the order is not there")
	complaint(t, stderr, "another connection has the branch")
	leave()
	if stdout, _ := s.tx(0, "recover"); !strings.Contains(stdout, ", rolled back 1, left 0") || s.rows() != 0 {
		t.Errorf("%s%d", stdout, s.rows())
	}
}

// TestTx_away: a database does not answer, and may have a branch of the transaction that nobody else knows. The exit code asks for another try.
func TestTx_away(t *testing.T) {
	t.Parallel()
	for want, err := range map[int]error{64: dtx.ErrNoTransaction, 69: errors.Join(dtx.ErrNoTransaction, driver.ErrBadConn)} {
		if exit := (*exitError)(nil); !errors.As(unlogged(err), &exit) || exit.code != want {
			t.Errorf("%v: exit code %d, not %d", err, exit.code, want)
		}
	}
}

func TestTx_usage(t *testing.T) {
	t.Parallel()
	file := "sqlite:" + filepath.Join(t.TempDir(), "log.db")
	want(t, 0, "memory:", "tx", "migrate", "--db", file)
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{64, "--db is missing", []string{"ls"}},
		{64, "a verb is missing", nil},
		{64, "no URL: give NAME=URL, or put the URL into PAWL_DB_stock", []string{"ls", "--db", file, "--resource", "stock"}},
		{64, "only the log can be there", []string{"ls", "--db", file, "--resource", "stock=" + file}},
		{64, "is no ID of a transaction", []string{"show", "7", "--db", file}},
		{64, "either --commit or --abort", []string{"resolve", "pawl-1-2-3", "--commit", "--abort", "--db", file}},
		{64, "--resource is needed", []string{"recover", "--db", file}},
		{64, "--lease is 2h0m0s: 1s to 1h0m0s are allowed", []string{"recover", "--db", file, "--resource", "stock", "--lease", "2h"}},
		{64, "--within is 1m0s: at least twice the lease of 1m0s is allowed", []string{"recover", "--db", file, "--resource", "stock", "--lease", "1m"}},
		{64, "--resource is needed", []string{"resolve", "pawl-1-2-3", "--abort", "--reason", "x", "--db", file}},
		{69, "--resource stock", []string{"ls", "--db", file, "--resource", "stock=mysql://root@127.0.0.1:1/x"}},
	} {
		_, stderr := want(t, c.code, "memory:", append([]string{"tx"}, c.args...)...)
		complaint(t, stderr, c.says)
	}
}

// TestTx_ls_without_resources: an empty list does not look as if no branch were prepared.
func TestTx_ls_without_resources(t *testing.T) {
	t.Parallel()
	log := "sqlite:" + filepath.Join(t.TempDir(), "log.db")
	want(t, 0, "memory:", "tx", "--db", log, "migrate")
	_, stderr := want(t, 0, "memory:", "tx", "--db", log, "ls", "--json")
	complaint(t, stderr, "--resource")
	if _, stderr = want(t, 0, "memory:", "tx", "--db", log, "ls", "--resolved"); stderr != "" {
		t.Errorf("the list of decisions says %s", stderr)
	}
}

// TestTx_unflushed: an operator reaches a log whose server does not flush, though no coordinator and no agent starts there. Recovery names the cure.
func TestTx_unflushed(t *testing.T) {
	t.Parallel()
	url := "mysql://root@" + testservers.MariaDB(t, "--log-bin", "--sync-binlog=0").Addr + "/pawl"
	for _, agent := range [][]string{nil, {"--agent"}} {
		for _, verb := range []string{"migrate", "ls"} {
			want(t, 0, "memory:", append([]string{"tx", verb, "--db", url}, agent...)...)
		}
	}
	for _, verb := range [][]string{{"show", "pawl-1-2-3"}, {"resolve", "pawl-1-2-3", "--abort", "--reason", "test", "--resource", "stock=" + url}} {
		_, stderr := want(t, 64, "memory:", append(append([]string{"tx"}, verb...), "--db", url)...)
		complaint(t, stderr, "pawl-1-2-3")
		if strings.Contains(stderr, "sync_binlog") {
			t.Error(stderr)
		}
	}
	_, stderr := want(t, 64, "memory:", "tx", "recover", "--db", url, "--resource", "stock="+url)
	complaint(t, stderr, "SET GLOBAL sync_binlog = 1")
	_, stderr = want(t, 64, "memory:", "tx", "agent", "--db", url, "--name", "a", "--listen", "127.0.0.1:0", "--peer", "b=http://127.0.0.1:1/", "--peer", "c=http://127.0.0.1:2/")
	complaint(t, stderr, "SET GLOBAL sync_binlog = 1")
}

// TestTx_rights: an operator reads which right is missing, and the exit code is not that of a fault of pawl.
func TestTx_rights(t *testing.T) {
	t.Parallel()
	overDatabases(t, func(t *testing.T, url, name string) {
		if strings.HasPrefix(url, "sqlite:") {
			return // which has no users
		}
		want(t, 0, "memory:", "tx", "--db", url, "--table", name, "migrate")
		want(t, 0, "memory:", "tx", "--db", url, "--table", name, "ls")
		as, _, _ := rightless(t, url, name)
		for _, verb := range []string{"migrate", "ls"} {
			_, stderr := want(t, 69, "memory:", "tx", "--db", as, "--table", name, verb)
			complaint(t, stderr, "denied")
			complaint(t, stderr, name)
			t.Log(verb, stderr)
		}
	})
}
