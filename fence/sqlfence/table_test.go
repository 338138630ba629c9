package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/sqlfence"
	"github.com/pawl-go/pawl/internal/fencetest"
)

// rows is a table as a guard: each resource is a row, which no write changes
// but for its token.
type rows struct {
	t *testing.T
	d *database
}

func (r rows) Check(ctx context.Context, resource string, token fence.Token) error {
	if err := fence.Validate(resource, token); err != nil {
		return err
	}
	id := sqlfence.Columns{"id": []byte(resource)}
	if _, err := r.d.row(ctx, resource); err != nil {
		r.d.exec(r.t, "INSERT INTO "+r.d.own.Name+" (id) VALUES (?)", id["id"])
	}
	return r.d.own.UpdateIfNotOlder(ctx, r.d, id, token, nil)
}

func TestTableIsAGuard(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if err := fencetest.Contract(t.Context(), rows{t, d}, ""); err != nil {
			t.Error(err)
		}
	})
}

func TestUpdateIfNotOlderRace(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.exec(t, "INSERT INTO "+d.own.Name+" (id) VALUES (?)", []byte("it"))
		key := sqlfence.Columns{"id": []byte("it")}
		err := fencetest.Race(t.Context(), fencetest.Resource{
			Write: func(ctx context.Context, token fence.Token) error {
				return d.own.UpdateIfNotOlder(ctx, d, key, token, sqlfence.Columns{"order": int64(token)})
			},
			Read: func(ctx context.Context) (fence.Token, error) {
				row, err := d.row(ctx, "it")
				return fence.Token(row[0]), err
			},
		}, 8, 40)
		if err != nil {
			t.Error(err)
		}
	})
}

// A token that is equal and values that are there already change nothing. MySQL then says that
// no row was affected, unless the connection has clientFoundRows. In both cases the write is
// not refused, and a refused write is not taken for it.
func TestUpdateThatChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.exec(t, "INSERT INTO "+d.own.Name+" (id) VALUES (?)", []byte("it"))
		key, set := sqlfence.Columns{"id": []byte("it")}, sqlfence.Columns{"order": 42}
		for range 3 {
			if err := d.own.UpdateIfNotOlder(t.Context(), d, key, 7, set); err != nil {
				t.Error(err)
			}
			if err := d.own.UpdateIfNotOlder(t.Context(), d, key, 6, set); !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		}
		if row, err := d.row(t.Context(), "it"); err != nil || row != [3]int64{42, 7, 1} {
			t.Error(row, err)
		}
		// The affected rows alone say something else, by the setting: that is why.
		if d.dialect != sqlfence.MySQL {
			return
		}
		result, err := d.ExecContext(t.Context(), "UPDATE "+d.own.Name+" SET `order` = 42, fence = 7 WHERE id = 'it' AND fence <= 7")
		if err != nil {
			t.Fatal(err)
		}
		n, err := result.RowsAffected()
		if want := map[bool]int64{false: 0, true: 1}[strings.Contains(t.Name(), "clientFoundRows=true")]; err != nil || n != want {
			t.Errorf("%d rows affected, want %d, %v", n, want, err)
		}
	})
}

// Triggers that write rows of their own change nothing about it. On the table of
// marks they may hide what came of it, and that is an error, never a pass.
func TestTriggers(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect != sqlfence.MySQL {
			return // the others do not look at generated numbers
		}
		log := d.own.Name + "_log"
		d.exec(t, "CREATE TABLE "+log+" (n bigint AUTO_INCREMENT PRIMARY KEY, token bigint) AUTO_INCREMENT = 1000")
		t.Cleanup(func() { d.exec(t, "DROP TABLE "+log) })
		for _, when := range []string{"BEFORE", "AFTER"} {
			d.exec(t, "CREATE TRIGGER "+log+when+" "+when+" UPDATE ON "+d.own.Name+" FOR EACH ROW INSERT INTO "+log+" (token) VALUES (NEW.fence)")
		}
		for _, id := range []string{"it", "other"} {
			d.exec(t, "INSERT INTO "+d.own.Name+" (id) VALUES (?)", []byte(id))
		}
		d.SetMaxOpenConns(1) // what one statement leaves behind the next one finds
		key := sqlfence.Columns{"id": []byte("it")}
		for _, step := range []struct {
			token fence.Token
			want  error
		}{{5, nil}, {4, fence.ErrStale}, {5, nil}, {2000, nil}, {2000, nil}, {1999, fence.ErrStale}, {2001, nil}} {
			if err := d.own.UpdateIfNotOlder(t.Context(), d, key, step.token, sqlfence.Columns{"order": 1}); !errors.Is(err, step.want) {
				t.Errorf("token %d: %v, want %v", step.token, err, step.want)
			}
		}
		if _, err := d.own.UpdateIfVersion(t.Context(), d, key, 1, nil); err != nil {
			t.Error(err)
		}
		for _, when := range []string{"BEFORE INSERT", "BEFORE UPDATE", "AFTER INSERT", "AFTER UPDATE"} {
			trigger := d.quoted(strings.ReplaceAll(log+when, " ", ""))
			d.exec(t, "CREATE TRIGGER "+trigger+" "+when+" ON "+d.quoted(d.marks.Table)+" FOR EACH ROW INSERT INTO "+log+" (token) VALUES (NEW.token)")
		}
		for _, token := range []fence.Token{5000, 5000, 5001} {
			if err := d.marks.Check(t.Context(), d, "it", token); errors.Is(err, fence.ErrStale) {
				t.Errorf("mark, token %d: %v", token, err)
			}
		}
		if err := d.marks.Check(t.Context(), d, "it", 4999); err == nil {
			t.Error("a trigger let a stale token pass")
		}
	})
}

func TestNoSuchRow(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		key := sqlfence.Columns{"id": []byte("nobody")}
		if err := d.own.UpdateIfNotOlder(t.Context(), d, key, 1, nil); !errors.Is(err, sql.ErrNoRows) || errors.Is(err, fence.ErrStale) {
			t.Error(err)
		}
		if _, err := d.own.UpdateIfVersion(t.Context(), d, key, 1, nil); !errors.Is(err, sql.ErrNoRows) || errors.Is(err, sqlfence.ErrConflict) {
			t.Error(err)
		}
	})
}

// A row that was inserted after the transaction began to read is there.
func TestRefusedInAnOldSnapshot(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect != sqlfence.MySQL {
			return // others do not see it, or fail, in the UPDATE as well
		}
		err := d.transactOnce(t.Context(), sql.LevelRepeatableRead, func(tx *sql.Tx) error {
			var n int
			if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM "+d.own.Name).Scan(&n); err != nil {
				t.Fatal(err)
			}
			d.exec(t, "INSERT INTO "+d.own.Name+" (id, fence) VALUES ('it', 9)")
			return d.own.UpdateIfNotOlder(t.Context(), tx, sqlfence.Columns{"id": []byte("it")}, 8, nil)
		})
		if !errors.Is(err, fence.ErrStale) {
			t.Error(err)
		}
	})
}

// Of the writers that read one version exactly one writes, and every write counts.
func TestUpdateIfVersionRace(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.exec(t, "INSERT INTO "+d.own.Name+" (id, "+d.quoted("order")+") VALUES (?, 0)", []byte("it"))
		key := sqlfence.Columns{"id": []byte("it")}
		const writers, increments = 6, 10
		var all sync.WaitGroup
		for range writers {
			all.Go(func() {
				for done := 0; done < increments; {
					row, err := d.row(t.Context(), "it")
					if err != nil {
						t.Error(err)
						return
					}
					version, err := d.own.UpdateIfVersion(t.Context(), d, key, row[2], sqlfence.Columns{"order": row[0] + 1})
					switch {
					case err == nil && version == row[2]+1:
						done++
					case !errors.Is(err, sqlfence.ErrConflict):
						t.Errorf("%d, %v", version, err)
						return
					}
				}
			})
		}
		all.Wait()
		if row, err := d.row(t.Context(), "it"); err != nil || row != [3]int64{writers * increments, 0, writers*increments + 1} {
			t.Error(row, err)
		}
	})
}

// A version counts also when nothing else changes, so that every database says
// that a row was affected.
func TestUpdateIfVersionThatChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.exec(t, "INSERT INTO "+d.own.Name+" (id, "+d.quoted("order")+") VALUES (?, 42)", []byte("it"))
		key, set := sqlfence.Columns{"id": []byte("it")}, sqlfence.Columns{"order": 42}
		for want := int64(2); want < 5; want++ {
			if version, err := d.own.UpdateIfVersion(t.Context(), d, key, want-1, set); err != nil || version != want {
				t.Error(version, err)
			}
			if _, err := d.own.UpdateIfVersion(t.Context(), d, key, want-1, set); !errors.Is(err, sqlfence.ErrConflict) {
				t.Error(err)
			}
		}
	})
}

// Values go as parameters whatever is in them, and NULL is a value.
func TestValues(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		id := "'; DROP TABLE " + d.own.Name + "; -- \x00 \\ ? $1"
		d.exec(t, "INSERT INTO "+d.own.Name+" (id) VALUES (?)", []byte(id))
		key := sqlfence.Columns{"id": []byte(id)}
		if err := d.own.UpdateIfNotOlder(t.Context(), d, key, 7, sqlfence.Columns{"order": 5, "version": 3}); err != nil {
			t.Error(err)
		}
		if row, err := d.row(t.Context(), id); err != nil || row != [3]int64{5, 7, 3} {
			t.Error(row, err)
		}
		if _, err := d.own.UpdateIfVersion(t.Context(), d, key, 3, sqlfence.Columns{"order": nil, "fence": 1}); err != nil {
			t.Error(err)
		}
		if row, err := d.row(t.Context(), id); err != nil || row != [3]int64{0, 1, 4} {
			t.Error(row, err)
		}
	})
}

// A key of several rows is a mistake that is told; a transaction can undo it.
func TestKeyOfSeveralRows(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		for _, id := range []string{"a", "b"} {
			d.exec(t, "INSERT INTO "+d.own.Name+" (id, "+d.quoted("order")+") VALUES (?, 1)", []byte(id))
		}
		err := d.transact(t.Context(), sql.LevelDefault, func(tx *sql.Tx) error {
			return d.own.UpdateIfNotOlder(t.Context(), tx, sqlfence.Columns{"order": 1}, 7, nil)
		})
		if err == nil || !strings.Contains(err.Error(), "2 rows") {
			t.Error(err)
		}
		if row, err := d.row(t.Context(), "a"); err != nil || row[1] != 0 {
			t.Error(row, err)
		}
	})
}

func TestBadNames(t *testing.T) {
	for _, name := range []string{"", "a b", `a"b`, "a`b", "a;b", "a-b", "1a", "ä", "a.b.c", ".a", "a.", "a\x00", strings.Repeat("a", 64)} {
		for _, dialect := range []sqlfence.Dialect{sqlfence.PostgreSQL, sqlfence.MySQL, sqlfence.SQLite} {
			key := sqlfence.Columns{"id": 1}
			tables := map[string]sqlfence.Table{"table": {Dialect: dialect, Name: name}}
			if name != "" { // else it is the usual one
				tables["column of the token"] = sqlfence.Table{Dialect: dialect, Name: "own", Token: name}
				if err := (sqlfence.Marks{Dialect: dialect, Table: name}).Check(t.Context(), nil, "it", 1); !errors.Is(err, sqlfence.ErrName) {
					t.Errorf("table of marks %q: %v", name, err)
				}
				version := sqlfence.Table{Dialect: dialect, Name: "own", Version: name}
				if _, err := version.UpdateIfVersion(t.Context(), nil, key, 1, nil); !errors.Is(err, sqlfence.ErrName) {
					t.Errorf("column of the version %q: %v", name, err)
				}
			}
			for what, table := range tables {
				if err := table.UpdateIfNotOlder(t.Context(), nil, key, 1, nil); !errors.Is(err, sqlfence.ErrName) {
					t.Errorf("%s %q: %v", what, name, err)
				}
			}
			own := sqlfence.Table{Dialect: dialect, Name: "own"}
			if err := own.UpdateIfNotOlder(t.Context(), nil, sqlfence.Columns{name: 1}, 1, nil); !errors.Is(err, sqlfence.ErrName) {
				t.Errorf("column of the key %q: %v", name, err)
			}
			if _, _, err := own.VersionStatement(key, 1, sqlfence.Columns{name: 1}); !errors.Is(err, sqlfence.ErrName) {
				t.Errorf("column %q: %v", name, err)
			}
		}
	}
}

func TestBadUpdates(t *testing.T) {
	own := sqlfence.Table{Dialect: sqlfence.SQLite, Name: "own"}
	key := sqlfence.Columns{"id": 1}
	for name, err := range map[string]error{
		"no key":      own.UpdateIfNotOlder(t.Context(), nil, nil, 1, nil),
		"no dialect":  sqlfence.Table{Name: "own"}.UpdateIfNotOlder(t.Context(), nil, key, 1, nil),
		"no token":    own.UpdateIfNotOlder(t.Context(), nil, key, 0, nil),
		"token twice": own.UpdateIfNotOlder(t.Context(), nil, key, 1, sqlfence.Columns{"fence": 1}),
		"upper case":  own.UpdateIfNotOlder(t.Context(), nil, key, 1, sqlfence.Columns{"Fence": 1}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The statements as people read them, and as they stay from call to call.
func TestStatements(t *testing.T) {
	key, set := sqlfence.Columns{"tenant": 3, "id": 7}, sqlfence.Columns{"name": "b", "balance": 5}
	for dialect, want := range map[sqlfence.Dialect][2]string{
		sqlfence.PostgreSQL: {
			`UPDATE "bank"."account" SET "balance" = $1, "name" = $2, "fence" = $3 WHERE "id" = $4 AND "tenant" = $5 AND "fence" <= $6`,
			`UPDATE "bank"."account" SET "balance" = $1, "name" = $2, "version" = "version" + 1 WHERE "id" = $3 AND "tenant" = $4 AND "version" = $5`,
		},
		sqlfence.MySQL: {
			"UPDATE `bank`.`account` SET `balance` = ?, `name` = ?, `fence` = ? WHERE `id` = ? AND `tenant` = ? AND `fence` <= ?",
			"UPDATE `bank`.`account` SET `balance` = ?, `name` = ?, `version` = `version` + 1 WHERE `id` = ? AND `tenant` = ? AND `version` = ?",
		},
		sqlfence.SQLite: {
			`UPDATE "bank"."account" SET "balance" = ?, "name" = ?, "fence" = ? WHERE "id" = ? AND "tenant" = ? AND "fence" <= ?`,
			`UPDATE "bank"."account" SET "balance" = ?, "name" = ?, "version" = "version" + 1 WHERE "id" = ? AND "tenant" = ? AND "version" = ?`,
		},
	} {
		account := sqlfence.Table{Dialect: dialect, Name: "bank.account"}
		if query, args, err := account.NotOlderStatement(key, 9, set); err != nil || query != want[0] || len(args) != 6 {
			t.Error(query, args, err)
		}
		if query, args, err := account.VersionStatement(key, 9, set); err != nil || query != want[1] || len(args) != 5 {
			t.Error(query, args, err)
		}
	}
}
