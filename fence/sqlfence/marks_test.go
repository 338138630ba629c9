package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/sqlfence"
	"github.com/pawl-go/pawl/internal/fencetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMarks(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if err := fencetest.Contract(t.Context(), d.marks.Guard(d), ""); err != nil {
			t.Error(err)
		}
	})
}

// Every write is two statements of one transaction.
func TestMarksRace(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		levels := map[string]sql.IsolationLevel{"usual": sql.LevelDefault, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable}
		if d.dialect == sqlfence.SQLite { // has one level
			delete(levels, "repeatable read")
			delete(levels, "serializable")
		}
		for name, level := range levels {
			id := []byte(name)
			d.exec(t, "INSERT INTO "+d.own.Name+" (id) VALUES (?)", id)
			update := d.placeholders("UPDATE " + d.own.Name + " SET " + d.quoted("order") + " = ? WHERE id = ?")
			err := fencetest.Race(t.Context(), fencetest.Resource{
				Write: func(ctx context.Context, token fence.Token) error {
					return d.transact(ctx, level, func(tx *sql.Tx) error {
						if err := d.marks.Check(ctx, tx, name, token); err != nil {
							return err
						}
						_, err := tx.ExecContext(ctx, update, int64(token), id)
						return err
					})
				},
				Read: func(ctx context.Context) (fence.Token, error) {
					row, err := d.row(ctx, name)
					return fence.Token(row[0]), err
				},
			}, 8, 25)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A rollback takes the mark back: nothing was written under it.
func TestMarksRollBack(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		failed := errors.New("changed my mind")
		err := d.transact(t.Context(), sql.LevelDefault, func(tx *sql.Tx) error {
			return errors.Join(d.marks.Check(t.Context(), tx, "it", 9), failed)
		})
		if !errors.Is(err, failed) {
			t.Fatal(err)
		}
		if err := d.marks.Check(t.Context(), d, "it", 8); err != nil {
			t.Error(err)
		}
	})
}

// The mark is locked until the transaction ends, also when the token was there already. A
// client with another token waits. Without that the older one below would pass, and write last.
func TestMarksHoldUntilTheEnd(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if err := d.marks.Check(t.Context(), d, "it", 5); err != nil {
			t.Fatal(err)
		}
		for _, token := range []fence.Token{5, 6} {
			err := d.transact(t.Context(), sql.LevelDefault, func(tx *sql.Tx) error {
				if err := d.marks.Check(t.Context(), tx, "it", token); err != nil {
					return err
				}
				for _, other := range []fence.Token{token - 1, token, token + 1} {
					soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					err := d.marks.Check(soon, d, "it", other)
					cancel()
					if err == nil || errors.Is(err, fence.ErrStale) {
						t.Errorf("%d did not wait for the end of %d: %v", other, token, err)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if err := d.marks.Check(t.Context(), d, "it", token-1); !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		}
	})
}

// A transaction that began to read before a newer token was there does not pass
// with an older one, whatever it sees.
func TestMarksInAnOldSnapshot(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == sqlfence.SQLite {
			return // a transaction that may write has no old snapshot there
		}
		if err := d.marks.Check(t.Context(), d, "it", 5); err != nil {
			t.Fatal(err)
		}
		err := d.transactOnce(t.Context(), sql.LevelRepeatableRead, func(tx *sql.Tx) error {
			var n int
			if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM "+d.quoted(d.marks.Table)).Scan(&n); err != nil {
				t.Fatal(err)
			}
			if err := d.marks.Check(t.Context(), d, "it", 9); err != nil {
				t.Fatal(err)
			}
			return d.marks.Check(t.Context(), tx, "it", 8)
		})
		if err == nil {
			t.Error("it passed")
		}
		if err := d.marks.Check(t.Context(), d, "it", 8); !errors.Is(err, fence.ErrStale) {
			t.Error(err)
		}
	})
}

// The statement for other clients is the statement that Check runs.
func TestMarksStatement(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == sqlfence.MySQL {
			return // its affected rows do not say it, as its documentation does
		}
		for _, step := range []struct {
			token fence.Token
			rows  int64
		}{{5, 1}, {5, 1}, {4, 0}, {6, 1}} {
			query, args, err := d.marks.Statement("it", step.token)
			if err != nil {
				t.Fatal(err)
			}
			result, err := d.ExecContext(t.Context(), query, args...)
			if err != nil {
				t.Fatal(err)
			}
			if rows, err := result.RowsAffected(); err != nil || rows != step.rows {
				t.Errorf("token %d: %d rows affected, %v", step.token, rows, err)
			}
		}
		if _, _, err := d.marks.Statement("it", 0); !errors.Is(err, fence.ErrInvalid) {
			t.Error(err)
		}
	})
}

// pgx itself takes what database/sql takes, and says how many rows it were.
func TestStatementsInPgx(t *testing.T) {
	d := postgres(t, pgx.QueryExecModeCacheStatement)
	d.exec(t, "INSERT INTO "+d.own.Name+" (id) VALUES (?)", []byte("it"))
	conn, err := pgx.Connect(t.Context(), testservers.PostgresURL(testservers.SharedPostgres(t).Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows := func(query string, args []any, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		tag, err := conn.Exec(t.Context(), query, args...)
		if err != nil {
			t.Fatal(err)
		}
		return tag.RowsAffected()
	}
	key, set := sqlfence.Columns{"id": []byte("it")}, sqlfence.Columns{"order": 42}
	for _, step := range []struct {
		token fence.Token
		rows  int64
	}{{5, 1}, {5, 1}, {4, 0}, {6, 1}} {
		if n := rows(d.marks.Statement("it", step.token)); n != step.rows {
			t.Errorf("mark, token %d: %d rows", step.token, n)
		}
		if n := rows(d.own.NotOlderStatement(key, step.token, set)); n != step.rows {
			t.Errorf("row, token %d: %d rows", step.token, n)
		}
	}
	if n := rows(d.own.VersionStatement(key, 1, set)); n != 1 {
		t.Errorf("version 1: %d rows", n)
	}
	if n := rows(d.own.VersionStatement(key, 1, set)); n != 0 {
		t.Errorf("version 1 again: %d rows", n)
	}
}

func TestMarksSayWhatFailed(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		marks := sqlfence.Marks{Dialect: d.dialect, Table: "there_is_none"}
		if err := marks.Check(t.Context(), d, "it", 1); err == nil || errors.Is(err, fence.ErrStale) {
			t.Error(err)
		}
	})
	for _, marks := range []sqlfence.Marks{{}, {Dialect: 4}} {
		if err := marks.Check(t.Context(), nil, "it", 1); err == nil {
			t.Errorf("dialect %d", marks.Dialect)
		}
		if err := marks.Create(t.Context(), nil); err == nil {
			t.Errorf("dialect %d", marks.Dialect)
		}
	}
}
