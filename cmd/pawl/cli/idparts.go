package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/sqlmark"
)

// errNoMark tells the user of a Redis without a mark the consequence.
var errNoMark = errors.New("redis counts without a mark: numbers repeat after Redis was restarted, emptied, restored or replaced; --store keeps a mark")

// idParts are the parts that the generators of one process share. The first generator that needs a
// part opens it, and all are closed in the end. idParts is for one goroutine.
type idParts struct {
	o         *idOptions
	client    *pawl.Client
	marks     id.Registers // in the store
	databases []*open.Database
	tables    id.Registers // in a database
	redis     rueidis.Client
	closers   []func(context.Context) error
}

// with calls fn with the lines of each name, and closes all after that.
func (o *idOptions) with(ctx context.Context, k idKind, names []string, fn func(map[string]lines) error) error {
	p := &idParts{o: o}
	defer p.close(ctx)
	made := make(map[string]lines)
	err := askWithin(ctx, idWithin, func(ctx context.Context) error {
		for _, name := range names {
			from, err := k.open(ctx, p, name)
			if err != nil {
				return err
			}
			made[name] = from
		}
		return nil
	})
	if err != nil {
		return err
	}
	return fn(made)
}

func (p *idParts) atEnd(do func(context.Context) error) { p.closers = append(p.closers, do) }

// close closes all, the last first. A store that does not answer frees the held parts after a TTL.
func (p *idParts) close(ctx context.Context) {
	within := closeWithin
	if p.o.serving { // no user waits for it at a terminal
		within = answerWithin
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	soon(within, func() {
		for _, do := range slices.Backward(p.closers) {
			do(ctx) //nolint:errcheck // the process ends
		}
	})
}

// values returns the marks and counters in the store.
func (p *idParts) values(ctx context.Context) (id.Registers, error) {
	if p.marks != nil {
		return p.marks, nil
	}
	eng, err := p.o.store.open(ctx)
	if err != nil {
		return nil, err
	}
	p.atEnd(func(context.Context) error { return eng.Close() })
	ttl := max(defaultTTL, eng.Caps().MinTTL)
	p.client, err = pawl.New(ctx, eng, &pawl.Options{TTL: ttl, RequestTimeout: answerWithin, Lazy: true, Label: operator()})
	if err != nil {
		return nil, err
	}
	p.atEnd(p.client.Close)
	p.marks, err = p.o.durable(p.client)
	return p.marks, err
}

// durable refuses a store that may forget, unless the user accepts such a store.
func (o *idOptions) durable(client *pawl.Client) (id.Registers, error) {
	marks, why := id.Values(client, nil)
	if why == nil {
		return marks, nil
	}
	marks, err := id.Values(client, &id.ValuesOptions{AllowForgetting: true})
	switch {
	case err != nil: // the store has no values at all
		return nil, err
	case !o.forgets:
		if o.orDB {
			return nil, fmt.Errorf("%w, which is --%s here; the numbers can be in a database, which is --%s", why, flagForgets, flagDB)
		}
		return nil, fmt.Errorf("%w, which is --%s here", why, flagForgets)
	}
	complain(fmt.Errorf("%s may lose its last writes: then the IDs that were made under them repeat", client.Caps().Name))
	return marks, nil
}

// openDatabases opens the databases of --db, without a request to any.
func (p *idParts) openDatabases() error {
	if p.databases != nil {
		return nil
	}
	for _, url := range p.o.dbs {
		d, err := open.PrepareDatabase(url)
		if err != nil {
			return fmt.Errorf("--db: %w", err)
		}
		p.databases = append(p.databases, d)
		p.atEnd(func(context.Context) error { return d.Close() })
	}
	return nil
}

// registers returns the counters in the database of --db, else those in the store.
func (p *idParts) registers(ctx context.Context) (id.Registers, error) {
	switch {
	case len(p.o.dbs) == 0:
		return p.values(ctx)
	case p.tables != nil:
		return p.tables, nil
	}
	d, err := open.OpenDatabase(ctx, p.o.dbs[0])
	if err != nil {
		return nil, fmt.Errorf("--db: %w", err)
	}
	p.atEnd(func(context.Context) error { return d.Close() })
	tables, err := sqlmark.New(d.DB, d.Dialect, nil)
	if err == nil {
		err = tables.Check(ctx)
	}
	if errors.Is(err, dialect.ErrMissing) { // the tables may exist already, so a user that may not create tables is no error
		err = tables.Create(ctx)
	}
	if err != nil {
		return nil, err
	}
	p.tables = tables
	return tables, nil
}
