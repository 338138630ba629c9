package main

import (
	"context"
	"database/sql"
	"errors"
)

// The usual forms. Each of them looks first, and notes at the end that it has paid. A second
// request that comes between both pays again.

// noted reports whether an earlier request has noted the key.
func noted(ctx context.Context, db *sql.DB, key string) (is bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT count(*) > 0 FROM noted WHERE id = ?", key).Scan(&is)
	return is, err
}

func note(ctx context.Context, db *sql.DB, key string) error {
	_, err := db.ExecContext(ctx, "INSERT INTO noted (id) VALUES (?)", key)
	return err
}

// noteAfter is the form that all of them have.
func noteAfter(ctx context.Context, s *shop, key string, pay func() error) error {
	if done, err := noted(ctx, s.db, key); err != nil || done {
		return err
	}
	if err := pay(); err != nil {
		return err
	}
	s.middle()
	return note(ctx, s.db, key)
}

func plainID(ctx context.Context, s *shop, key string) error {
	return noteAfter(ctx, s, key, func() error { return s.bank(ctx, "") })
}

func plainTable(ctx context.Context, s *shop, key string) error {
	return noteAfter(ctx, s, key, func() error { return pay(ctx, s.db) })
}

// plainState is right for requests that come one after the other.
func plainState(ctx context.Context, s *shop, _ string) error {
	var is string
	if err := s.db.QueryRowContext(ctx, "SELECT state FROM orders WHERE id = ?", order).Scan(&is); err != nil {
		return err
	}
	if is == "paid" {
		return nil
	}
	if err := pay(ctx, s.db); err != nil {
		return err
	}
	s.middle()
	_, err := s.db.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = ?", order)
	return err
}

// plainLock trusts its lock, and does not look at lease.Context.
func plainLock(ctx context.Context, s *shop, key string) error {
	lease, err := s.client.Mutex("plain/" + order).Lock(ctx)
	if err != nil {
		return err
	}
	err = noteAfter(ctx, s, key, func() error { return pay(ctx, s.db) })
	return errors.Join(err, lease.Unlock(ctx))
}

func plainSegments(ctx context.Context, s *shop, key string) error {
	return noteAfter(ctx, s, key, func() error {
		_, err := s.db.ExecContext(ctx, `UPDATE segments SET units = units - 1
			WHERE n = (SELECT n FROM segments WHERE units > 0 ORDER BY random() LIMIT 1)`)
		return err
	})
}

func takenPlainly(ctx context.Context, db *sql.DB) (n int, err error) {
	err = db.QueryRowContext(ctx, "SELECT ? - sum(units) FROM segments", units).Scan(&n)
	return n, err
}
