package main

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
)

// createPayments makes no unique index on the payments, so that a payment that comes again is seen.
func (d *database) createPayments(ctx context.Context) error {
	return d.create(ctx,
		"CREATE TABLE accounts (item varchar(20) PRIMARY KEY, units int NOT NULL)",
		"CREATE TABLE payments (order_id varchar(20) NOT NULL, units int NOT NULL)",
		"INSERT INTO accounts VALUES (?, 0)")
}

// pay writes a payment: an account for each item, and a unit of money for each unit.
func (d *database) pay(ctx context.Context, tx dialect.DB, o order) error {
	if _, err := tx.ExecContext(ctx, d.bind("UPDATE accounts SET units = units + ? WHERE item = ?"), o.Units, o.Item); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, d.bind("INSERT INTO payments VALUES (?, ?)"), o.ID, o.Units)
	return err
}

// prepared counts the transactions that are prepared and not finished, and so keep their rows locked.
func (d *database) prepared(ctx context.Context) (n int, err error) {
	switch d.dialect {
	case dialect.PostgreSQL:
		err = d.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM pg_prepared_xacts WHERE database = current_database()").Scan(&n)
		return n, err
	case dialect.MySQL: // all databases of the server
		rows, err := d.db.QueryContext(ctx, "XA RECOVER")
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		for rows.Next() {
			n++
		}
		return n, rows.Err()
	}
	return 0, nil
}

// openCoordinator opens the database of payments, and that of the stock if it takes part. The log is in the database of orders.
// So an order is committed together with the decision, and is never prepared.
func (p *shop) openCoordinator(ctx context.Context) (err error) {
	if p.payments, err = openDatabase(ctx, p.Payments); err != nil {
		return err
	}
	if p.WithStock {
		if p.stock, err = openDatabase(ctx, p.Stock); err != nil {
			return err
		}
	}
	if p.ByHand || p.Naive {
		return nil
	}
	log, err := dtx.NewLog(p.dialect, p.db, nil)
	if err != nil {
		return err
	}
	p.resources = []*dtx.Resource{log.Resource("orders"), p.payments.resource("payments")}
	if p.WithStock {
		p.resources = append(p.resources, p.stock.resource("stock"))
	}
	// The times are short, so that the example ends soon. Programs take the defaults.
	p.coordinator, err = dtx.New(ctx, log, p.resources, &dtx.Options{Lease: ttl, Settle: ttl})
	return err
}

func (d *database) resource(name string) *dtx.Resource {
	if d.dialect == dialect.MySQL {
		return dtx.MySQL(name, d.db)
	}
	return dtx.PostgreSQL(name, d.db)
}

// repeats is how long an order is repeated after it was aborted.
const repeats = 30 * time.Second

// together commits an order and its payment, or neither. An abort is certain, so an aborted order is repeated. If the
// outcome is in doubt, the repeat waits for the row of the item, and then finds the order or not.
func (p *shop) together(ctx context.Context, o order, declined bool) error {
	for began := time.Now(); ; {
		err := p.coordinator.Run(ctx, func(ctx context.Context, tx *dtx.Tx) error {
			branches := []dialect.DB{tx.On(p.resources[0]), tx.On(p.resources[1])}
			if p.WithStock {
				branches = append(branches, tx.On(p.resources[2]))
			}
			if err := p.sell(ctx, branches, o); err != nil {
				return err
			}
			if declined {
				return errDeclined
			}
			p.die(beforeVote)
			return nil
		})
		switch {
		case errors.Is(err, dtx.ErrPending): // commit is decided, and recovery does the rest
			return nil
		case err == nil || errors.Is(err, errDeclined) || errors.Is(err, errKnown) || ctx.Err() != nil || time.Since(began) > repeats:
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// sell writes an order and its payment. The stock is told by a message, or takes part.
func (p *shop) sell(ctx context.Context, branches []dialect.DB, o order) (err error) {
	if p.WithStock {
		err = p.deliverNow(ctx, branches[0], branches[2], o)
	} else {
		err = p.order(ctx, branches[0], o)
	}
	if err != nil {
		return err
	}
	return p.payments.pay(ctx, branches[1], o)
}

func (p *shop) deliverNow(ctx context.Context, orders, stock dialect.DB, o order) error {
	o, err := p.insert(ctx, orders, o)
	if err != nil {
		return err
	}
	if _, err := orders.ExecContext(ctx, p.bind("UPDATE orders SET state = 'delivered' WHERE id = ?"), o.ID); err != nil {
		return err
	}
	return p.stock.lower(ctx, stock, o)
}
