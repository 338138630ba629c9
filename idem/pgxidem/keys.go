package pgxidem

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/internal/keytable"
)

// keys is the table in a transaction. Each method sends one batch.
type keys struct {
	table keytable.Table
	tx    pgx.Tx
}

func (k *keys) Claim(ctx context.Context, c idem.TxClaim) (idem.TxRow, error) {
	for range keytable.Looks {
		var answer keytable.Answer
		b := new(batch)
		b.add(k.table.ClaimOrRead(c), func(r pgx.BatchResults) error { return r.QueryRow().Scan(answer.Columns()...) })
		if c.Savepoint {
			b.exec(keytable.Savepoint)
		}
		if err := b.send(ctx, k.tx); err != nil {
			return idem.TxRow{}, keytable.Failed(err)
		}
		if row, again, err := answer.Row(); !again {
			return row, err
		}
	}
	return idem.TxRow{}, keytable.ErrRestless
}

func (k *keys) Keep(ctx context.Context, c idem.TxClaim, result []byte) error {
	b := new(batch)
	b.one(k.table.Keep(c, result))
	if c.Savepoint {
		b.exec(keytable.Release)
	}
	return b.send(ctx, k.tx)
}

func (k *keys) Remove(ctx context.Context, c idem.TxClaim) error {
	b := new(batch)
	if c.Savepoint {
		b.exec(keytable.RollbackTo)
	}
	b.one(k.table.Remove(c))
	if err := b.send(ctx, k.tx); !keytable.Aborted(err) {
		return err
	}
	return nil // the commit is a rollback
}

// batch is statements that travel together.
type batch struct {
	pgx.Batch
	reads []func(pgx.BatchResults) error
	err   error
}

func (b *batch) add(s *dialect.Statement, read func(pgx.BatchResults) error) {
	query, args, err := s.Build()
	b.err = errors.Join(b.err, err)
	b.Queue(query, args...)
	b.reads = append(b.reads, read)
}

// exec adds a statement without an answer.
func (b *batch) exec(query string) {
	b.Queue(query)
	b.reads = append(b.reads, func(r pgx.BatchResults) error { _, err := r.Exec(); return err })
}

// one adds a compare-and-set.
func (b *batch) one(s *dialect.Statement) {
	b.add(s, func(r pgx.BatchResults) error {
		tag, err := r.Exec()
		return keytable.One(tag.RowsAffected(), err)
	})
}

func (b *batch) send(ctx context.Context, tx pgx.Tx) (err error) {
	if b.err != nil {
		return b.err
	}
	results := tx.SendBatch(ctx, &b.Batch)
	for _, read := range b.reads {
		if err = read(results); err != nil {
			break
		}
	}
	if closing := results.Close(); err == nil {
		err = closing
	}
	return err
}
