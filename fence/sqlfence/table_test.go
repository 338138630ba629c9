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
	return r.d.own.UpdateIfNotOlder(ctx, r.d, id, nil, token)
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
				return d.own.UpdateIfNotOlder(ctx, d, key, sqlfence.Columns{"order": int64(token)}, token)
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

// A token that is equal and values that are there already change nothing. MySQL
// then says that no row was affected, unless the connection has clientFoundRows:
// in both cases the write is not refused, nor is what was refused taken for it.
func TestUpdateThatChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.exec(t, "INSERT INTO "+d.own.Name+" (id) VALUES (?)", []byte("it"))
		key, set := sqlfence.Columns{"id": []byte("it")}, sqlfence.Columns{"order": 42}
		for range 3 {
			if err := d.own.UpdateIfNotOlder(t.Context(), d, key, set, 7); err != nil {
				t.Error(err)
			}
			if err := d.own.UpdateIfNotOlder(t.Context(), d, key, set, 6); !errors.Is(err, fence.ErrStale) {
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

func TestNoSuchRow(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		key := sqlfence.Columns{"id": []byte("nobody")}
		if err := d.own.UpdateIfNotOlder(t.Context(), d, key, nil, 1); !errors.Is(err, sql.ErrNoRows) || errors.Is(err, fence.ErrStale) {
			t.Error(err)
		}
		if _, err := d.own.UpdateIfVersion(t.Context(), d, key, nil, 1); !errors.Is(err, sql.ErrNoRows) || errors.Is(err, sqlfence.ErrConflict) {
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
			return d.own.UpdateIfNotOlder(t.Context(), tx, sqlfence.Columns{"id": []byte("it")}, nil, 8)
		})
		if !errors.Is(err, fence.ErrStale) {
			t.Error(err)
		}
	})
}

// Of those that read one version one writes, and every write counts.
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
					version, err := d.own.UpdateIfVersion(t.Context(), d, key, sqlfence.Columns{"order": row[0] + 1}, row[2])
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
			if version, err := d.own.UpdateIfVersion(t.Context(), d, key, set, want-1); err != nil || version != want {
				t.Error(version, err)
			}
			if _, err := d.own.UpdateIfVersion(t.Context(), d, key, set, want-1); !errors.Is(err, sqlfence.ErrConflict) {
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
		if err := d.own.UpdateIfNotOlder(t.Context(), d, key, sqlfence.Columns{"order": 5, "version": 3}, 7); err != nil {
			t.Error(err)
		}
		if row, err := d.row(t.Context(), id); err != nil || row != [3]int64{5, 7, 3} {
			t.Error(row, err)
		}
		if _, err := d.own.UpdateIfVersion(t.Context(), d, key, sqlfence.Columns{"order": nil, "fence": 1}, 3); err != nil {
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
			return d.own.UpdateIfNotOlder(t.Context(), tx, sqlfence.Columns{"order": 1}, nil, 7)
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
				if _, err := version.UpdateIfVersion(t.Context(), nil, key, nil, 1); !errors.Is(err, sqlfence.ErrName) {
					t.Errorf("column of the version %q: %v", name, err)
				}
			}
			for what, table := range tables {
				if err := table.UpdateIfNotOlder(t.Context(), nil, key, nil, 1); !errors.Is(err, sqlfence.ErrName) {
					t.Errorf("%s %q: %v", what, name, err)
				}
			}
			own := sqlfence.Table{Dialect: dialect, Name: "own"}
			if err := own.UpdateIfNotOlder(t.Context(), nil, sqlfence.Columns{name: 1}, nil, 1); !errors.Is(err, sqlfence.ErrName) {
				t.Errorf("column of the key %q: %v", name, err)
			}
			if _, _, err := own.VersionStatement(key, sqlfence.Columns{name: 1}, 1); !errors.Is(err, sqlfence.ErrName) {
				t.Errorf("column %q: %v", name, err)
			}
		}
	}
}

func TestBadUpdates(t *testing.T) {
	own := sqlfence.Table{Dialect: sqlfence.SQLite, Name: "own"}
	key := sqlfence.Columns{"id": 1}
	for name, err := range map[string]error{
		"no key":      own.UpdateIfNotOlder(t.Context(), nil, nil, nil, 1),
		"no dialect":  sqlfence.Table{Name: "own"}.UpdateIfNotOlder(t.Context(), nil, key, nil, 1),
		"no token":    own.UpdateIfNotOlder(t.Context(), nil, key, nil, 0),
		"token twice": own.UpdateIfNotOlder(t.Context(), nil, key, sqlfence.Columns{"fence": 1}, 1),
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
			"UPDATE `bank`.`account` SET `balance` = ?, `name` = ?, `fence` = LAST_INSERT_ID(GREATEST(`fence`, ?)) WHERE `id` = ? AND `tenant` = ? AND `fence` <= ?",
			"UPDATE `bank`.`account` SET `balance` = ?, `name` = ?, `version` = `version` + 1 WHERE `id` = ? AND `tenant` = ? AND `version` = ?",
		},
		sqlfence.SQLite: {
			`UPDATE "bank"."account" SET "balance" = ?, "name" = ?, "fence" = ? WHERE "id" = ? AND "tenant" = ? AND "fence" <= ?`,
			`UPDATE "bank"."account" SET "balance" = ?, "name" = ?, "version" = "version" + 1 WHERE "id" = ? AND "tenant" = ? AND "version" = ?`,
		},
	} {
		account := sqlfence.Table{Dialect: dialect, Name: "bank.account"}
		if query, args, err := account.NotOlderStatement(key, set, 9); err != nil || query != want[0] || len(args) != 6 {
			t.Error(query, args, err)
		}
		if query, args, err := account.VersionStatement(key, set, 9); err != nil || query != want[1] || len(args) != 5 {
			t.Error(query, args, err)
		}
	}
}
