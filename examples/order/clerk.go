package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/dialect"
)

// The words between the program and a clerk.
const (
	ready   = "ready"   // the clerk waits for a word
	goOn    = "go on"   // the word: the customers who got nothing come again
	ordered = "ordered" // a customer has the order
)

// takeOrders is a clerk: it takes the orders of its customers, and says what became of each. At a word, the customers that got nothing come
// again, and are patient.
func takeOrders(ctx context.Context, s *settings) error {
	p, err := openShop(ctx, s)
	if err != nil {
		return err
	}
	defer p.close()
	if s.Late {
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
	for {
		for i := range s.N {
			customer := s.First + i
			line := ordered
			if err := p.attend(ctx, newOrder(customer)); err != nil {
				line = fmt.Sprintf("customer %d: %v", customer, err)
			}
			if _, err := fmt.Fprintln(s.out, line); err != nil {
				return err
			}
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
		s.Patience = 0
	}
}

// wait waits for a word of the program.
func (s *settings) wait(ctx context.Context) error {
	if _, err := fmt.Fprintln(s.out, ready); err != nil {
		return err
	}
	select {
	case <-s.words:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attend takes an order. The customer waits for as long as Patience says.
func (p *shop) attend(ctx context.Context, o order) error {
	if p.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.Patience)
		defer cancel()
	}
	do := p.byHand
	if !p.ByHand {
		do = func(ctx context.Context, o order) error { return p.together(ctx, o, false) }
	}
	if err := do(ctx, o); !errors.Is(err, errKnown) {
		return err
	}
	return nil
}

// byHand is two-phase commit as it is often written. The decision is in the memory of the process, and nowhere else.
func (p *shop) byHand(ctx context.Context, o order) error {
	var conns []*sql.Conn
	var branches []dialect.DB
	defer func() {
		for _, conn := range conns {
			conn.Close() //nolint:errcheck // nothing is lost with it
		}
	}()
	for _, d := range []*database{p.database, p.payments, p.stock} {
		if d == nil {
			continue
		}
		conn, err := d.db.Conn(ctx)
		if err != nil {
			return err
		}
		conns, branches = append(conns, conn), append(branches, conn)
	}
	all := func(query string) (err error) {
		for i, conn := range conns {
			if err == nil {
				_, err = conn.ExecContext(ctx, fmt.Sprintf(query, fmt.Sprintf("%s-%s-%d", p.Stream, o.ID, i)))
			}
		}
		return err
	}
	err := all("BEGIN /* %s */")
	if err == nil {
		err = p.sell(ctx, branches, o)
	}
	if err == nil {
		err = all("PREPARE TRANSACTION '%s'")
	}
	if err != nil {
		return errors.Join(err, all("ROLLBACK /* %s */"))
	}
	if err := all(commitPrepared + " '%s'"); err != nil {
		return fmt.Errorf("the second phase fails: %w", err)
	}
	return nil
}

// openShop opens the databases of a process that takes orders.
func openShop(ctx context.Context, s *settings) (p *shop, err error) {
	p = &shop{settings: s}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.database, err = openDatabase(ctx, s.Orders); err != nil {
		return p, err
	}
	if err := p.openBox(); err != nil {
		return p, err
	}
	if s.Payments == "" {
		return p, nil
	}
	return p, p.openCoordinator(ctx)
}

func (p *shop) close() {
	if p.coordinator != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		p.coordinator.Close(ctx) //nolint:errcheck // recovery does the rest
	}
	for _, d := range []*database{p.database, p.payments, p.stock} {
		if d != nil {
			d.db.Close() //nolint:errcheck // the process ends
		}
	}
}
