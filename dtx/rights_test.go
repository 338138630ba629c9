//go:build unix

package dtx_test

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/dtx"
)

// as returns a place that is reached as another user without the rights of a superuser.
func (p place) as(user string) place {
	p.Source = strings.Replace(p.Source, "postgres@", user+"@", 1)
	return p
}

// rights: New names a missing right to the log. Recovery finishes all that its user may finish, and says what it may not.
func rights(t *testing.T) {
	t.Parallel()
	places := [2]place{postgres(t, "postgres"), postgres(t, "second")}
	b := newBank(t, places)
	owner, other := b.table+"_owner", b.table+"_other"
	tables := []string{b.table, b.table + "_beats", b.table + "_decided", b.table + "_resolved"}
	for _, query := range []string{
		"CREATE USER " + owner, "CREATE USER " + other,
		"GRANT SELECT ON " + strings.Join(tables, ", ") + " TO " + owner + ", " + other,
		"GRANT INSERT, UPDATE, DELETE ON " + strings.Join(tables, ", ") + " TO " + other,
	} {
		b.exec(t, 0, query)
	}
	for i := range places {
		b.exec(t, i, fmt.Sprintf("GRANT SELECT, UPDATE ON %s_%d TO %s, %s", b.table, i, owner, other))
	}
	mine := b.seenFrom(t, [2]place{places[0].as(owner), places[1].as(owner)})
	// Each right alone is found missing, with the table. An operator needs INSERT for a decision only.
	grants := []string{"INSERT ON " + tables[0], "INSERT ON " + tables[1], "UPDATE ON " + tables[1], "UPDATE ON " + tables[0], "INSERT ON " + tables[2],
		"DELETE ON " + tables[2], "DELETE ON " + tables[0], "DELETE ON " + tables[1]}
	for _, grant := range grants {
		_, err := dtx.New(t.Context(), mine.log, mine.parts, options)
		if err == nil || !strings.Contains(err.Error(), "permission denied for table "+grant[strings.LastIndex(grant, " ")+1:]+" ") {
			t.Fatalf("without %s: %v", grant, err)
		}
		b.exec(t, 0, "GRANT "+grant+" TO "+owner)
	}
	b.recoverAs(t, mine, b.seenFrom(t, [2]place{places[0].as(other), places[1].as(other)}))
}

// recoverAs: the dead coordinators of two users leave branches. Each recovery may finish those of its own user.
func (b *bank) recoverAs(t *testing.T, mine, theirs *bank) {
	c, err := dtx.New(t.Context(), mine.log, mine.parts, options)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "a transaction commits", func() bool { return c.Run(t.Context(), mine.move(0, 0, 1)) == nil })
	for i, dead := range []*bank{mine, theirs} {
		cmd, _ := dead.start(t, task{Account: 1 + i, Step: "decided 0"})
		cmd.Wait() //nolint:errcheck // the worker killed itself
	}
	until(t, "recovery has finished the branches of its user", func() bool {
		_, err := c.Recover(t.Context())
		s := c.Status()
		return err != nil && strings.Contains(err.Error(), "permission denied to finish prepared transaction") && s.Err != nil && s.Prepared == 2 && s.Records == 1
	})
	all, err := b.log.Transactions(t.Context(), b.parts)
	if err != nil || len(all) != 1 || all[0].State != dtx.Committing {
		t.Errorf("%v, %v", all, err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	super := b.coordinator(t)
	until(t, "a superuser finishes the rest, and fences the coordinators that did not start", func() bool {
		_, err := super.Recover(t.Context())
		return err == nil && b.prepared(t) == 0 && b.records(t) == 0 && b.count(t, b.table+" WHERE id > 0 AND fenced = 0") <= 1
	})
	after := b.accounts(t)
	for i := 1; i <= 2; i++ {
		if after[i] != [2]int{balance - moves, balance + moves} {
			t.Errorf("account %d: %v", i, after[i])
		}
	}
}

func (b *bank) exec(t *testing.T, i int, query string) {
	t.Helper()
	if _, err := b.dbs[i].ExecContext(t.Context(), query); err != nil {
		t.Fatal(query, ": ", err)
	}
}

// foreign: on shared servers, branches of other programs, of another log and of almost our names stay as they are.
func (b *bank) foreign(t *testing.T) {
	var log int64
	if err := b.dbs[0].QueryRowContext(t.Context(), "SELECT began FROM "+b.table+" WHERE id = 0").Scan(&log); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(b.places[:], func(p place) bool { return !p.Log })
	var ends []string
	for j, name := range []string{"order-42", fmt.Sprintf("pawl-%x-1-1-0", log+1), fmt.Sprintf("pawl-%x-1-1", log), fmt.Sprintf("pawl-%x-01-1-0", log), fmt.Sprintf("PAWL-%x-1-1-0", log)} {
		name = strings.Replace(name, "order", b.table, 1)
		conn, err := b.dbs[i].Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		update := fmt.Sprintf("UPDATE %s_%d SET n = n + 1 WHERE id = %d", b.table, i, j)
		queries := []string{"BEGIN", update, "PREPARE TRANSACTION '" + name + "'"}
		ends = append(ends, "ROLLBACK PREPARED '"+name+"'")
		if driverOf(b.places[i]) == "mysql" {
			queries = []string{"XA START '" + name + "'", update, "XA END '" + name + "'", "XA PREPARE '" + name + "'"}
			ends[j] = "XA ROLLBACK '" + name + "'"
		}
		for _, query := range queries {
			if _, err := conn.ExecContext(t.Context(), query); err != nil {
				t.Fatal(query, ": ", err)
			}
		}
		discard(conn)
	}
	c := b.patient(t)
	if r, err := c.Recover(t.Context()); err != nil || r.Committed+r.RolledBack+r.Waiting+len(r.Unknown) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if all, err := b.log.Transactions(t.Context(), b.parts); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	if err := c.Run(t.Context(), b.move(20, 20, 0)); err != nil {
		t.Error(err)
	}
	for _, end := range ends { // each is still prepared
		until(t, end, func() bool { _, err := b.dbs[i].ExecContext(t.Context(), end); return err == nil })
	}
}

// discard ends a connection, so that another may finish its branch on MariaDB.
func discard(conn *sql.Conn) { conn.Raw(func(any) error { return driver.ErrBadConn }) } //nolint:errcheck // that is the error
