package sequence

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id/sqlmark"
)

// record is what a database remembers about the sequence, as JSON. The first database of a
// set decides who is in it: it is the first that is told. So each place of a set belongs to one
// database, however many clients begin or enlarge the set at once.
type record struct {
	Format int    `json:"format"`
	Member string `json:"member"` // this database, made up when it was reached first; never changed

	// None while the database is in no set:
	Members []string `json:"members,omitempty"` // the set, in its order; it only grows at its end
	Step    int64    `json:"step,omitempty"`

	version int64 // of the row
}

const format = 1

// check says why a database cannot be the one at place i of a set with these members and step,
// if so. Members that nobody knows yet are nil.
func (r record) check(i int, members []string, step int64) error {
	place := slices.Index(r.Members, r.Member)
	switch {
	case r.Format != format:
		return fmt.Errorf("its record has format %d: this program knows format %d", r.Format, format)
	case len(r.Members) == 0 && i < len(members) && r.Member != members[i]:
		return fmt.Errorf("it is in no set, and another database is at place %d of this one: it was lost or replaced", i+1)
	case len(r.Members) == 0:
		return nil
	case place < 0:
		return errors.New("its record is a copy: it does not name this database")
	case r.Step != step:
		return fmt.Errorf("its set has step %d, not %d", r.Step, step)
	case place != i:
		return fmt.Errorf("it is at place %d of its set, not %d", place+1, i+1)
	case !begins(members, r.Members) && !begins(r.Members, members):
		return errors.New("it belongs to another set")
	}
	return nil
}

func begins(all, with []string) bool {
	return len(with) <= len(all) && slices.Equal(all[:len(with)], with)
}

// member is one database of the sequence: the tables in it, and the records of the sequence
// there.
type member struct {
	Database
	name    string // of the sequence
	table   dialect.Table
	numbers *sqlmark.Registers
}

func newMember(d Database, name, table string) (*member, error) {
	numbers, err := sqlmark.New(d.DB, d.Dialect, &sqlmark.Options{Table: table + "_n"})
	if err != nil {
		return nil, err
	}
	return &member{d, name, dialect.Table{Name: table, Columns: []dialect.Column{
		{Name: "name", Type: dialect.Text, Key: true}, {Name: "version", Type: dialect.Integer}, {Name: "record", Type: dialect.Bytes}}}, numbers}, nil
}

// look returns the record. Where there is none, it names no member. look writes nothing.
func (m *member) look(ctx context.Context) (record, error) {
	mine := m.table.Check(ctx, m.DB, m.Dialect)
	if mine != nil && !errors.Is(mine, dialect.ErrMissing) {
		return record{}, m.failed(ctx, mine)
	}
	if err := m.numbers.Check(ctx); err != nil && !errors.Is(err, dialect.ErrMissing) {
		return record{}, err
	}
	none := record{Format: format}
	if mine != nil {
		return none, nil
	}
	r, err := m.read(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return none, nil
	}
	return r, m.failed(ctx, err)
}

// create makes the tables and the record, where they are missing.
func (m *member) create(ctx context.Context) (record, error) {
	if err := m.numbers.Create(ctx); err != nil {
		return record{}, err
	}
	if err := m.table.Create(ctx, m.DB, m.Dialect); err != nil {
		return record{}, m.failed(ctx, err)
	}
	text, err := json.Marshal(record{Format: format, Member: rand.Text()})
	if err != nil {
		return record{}, err
	}
	row := dialect.Columns{"name": m.name, "version": 1, "record": text}
	if _, err := dialect.InsertIfAbsent(m.Dialect, m.table.Name, "name", row).Exec(ctx, m.DB); err != nil {
		return record{}, m.failed(ctx, err)
	}
	r, err := m.read(ctx)
	return r, m.failed(ctx, err)
}

func (m *member) read(ctx context.Context) (r record, err error) {
	var text []byte
	err = dialect.New(m.Dialect).Add("SELECT version, record FROM ").Table(m.table.Name).Add(" WHERE name = ").Value(m.name).
		Scan(ctx, m.DB, &r.version, &text)
	if err == nil {
		if err = json.Unmarshal(text, &r); err != nil || r.Member == "" {
			err = fmt.Errorf("%w: the record %.80q is none of ours", pawl.ErrMismatch, text)
		}
	}
	return r, err
}

// write replaces a record that was read, and reports whether it was still the same.
func (m *member) write(ctx context.Context, r record) (bool, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	result, err := dialect.New(m.Dialect).Add("UPDATE ").Table(m.table.Name).Add(" SET record = ").Value(text).Add(", version = version + 1 WHERE name = ").
		Value(m.name).Add(" AND version = ").Value(r.version).Exec(ctx, m.DB)
	if err != nil {
		return false, m.failed(ctx, err)
	}
	rows, err := result.RowsAffected()
	return rows == 1, m.failed(ctx, err)
}

// join gives a database its place in the set, and begins its numbers before that. So numbers
// that are missing beside a record of a set were lost.
func (m *member) join(ctx context.Context, r record, members []string, step int64) (bool, error) {
	if len(r.Members) == 0 {
		if err := m.count(r.Member).Begin(ctx); err != nil {
			return false, err
		}
	}
	if begins(r.Members, members) { // it knows as many
		return true, nil
	}
	r.Members, r.Step = members, step
	return m.write(ctx, r)
}

// count is the counter of the database. The counter has the name of the member, so that in any other
// database there is no such counter.
func (m *member) count(id string) sqlmark.Begun { return m.numbers.Begun(m.name + "/" + id) }

// failed gives an error of the database its class.
func (m *member) failed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, dialect.ErrShape), errors.Is(err, pawl.ErrMismatch):
		return fmt.Errorf("%w: %w", pawl.ErrMismatch, err)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", pawl.ErrUnavailable, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", pawl.ErrUnavailable, err)
}
