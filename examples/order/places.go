package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// auto chooses the first kind of a list whose server is installed.
const auto = "auto"

// kind is a database or a broker.
type kind struct {
	name, title string
	program     string // empty: no server is needed
	start       func(ctx context.Context, p *places, program string) (url string, err error)
}

var (
	nowhere  = kind{name: "none", title: "nowhere"}
	postgres = kind{"postgres", "PostgreSQL", "initdb", startPostgres}
	mariadb  = kind{"mariadb", "MariaDB", "mariadbd", startMariaDB}
	sqlite   = kind{name: "sqlite", title: "SQLite"}
	natsJS   = kind{"nats", "NATS JetStream", "nats-server", startNATS}
	redisKV  = kind{"redis", "Redis Streams", "redis-server", startRedis}
	hook     = kind{name: "webhook", title: "a webhook"}
)

// place is a chosen kind.
type place struct {
	kind
	url string // of the server
}

// places are those of orders, payments, stock and messages.
type places struct {
	dir                             string
	orders, payments, stock, broker place
	trials                          atomic.Int64

	mu      sync.Mutex // guards the fields below, while servers start
	servers []*server
	started map[string]string // URLs by kind
}

// wanted are the names of kinds, as the flags have them.
type wanted struct{ orders, payments, stock, broker string }

// openPlaces starts the servers that were chosen, and says which they are.
func openPlaces(ctx context.Context, w wanted, out io.Writer) (p *places, err error) {
	p = &places{started: make(map[string]string)}
	if p.dir, err = os.MkdirTemp("", "pawl-order-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	choices := []choice{
		{"orders", w.orders, []kind{postgres, sqlite, mariadb}, &p.orders},
		{"payments", w.payments, []kind{postgres, mariadb, nowhere}, &p.payments}, // SQLite prepares no transactions
		{"stock", w.stock, []kind{mariadb, sqlite, postgres}, &p.stock},
		{"broker", w.broker, []kind{natsJS, redisKV, hook}, &p.broker},
	}
	for _, c := range choices {
		if err := c.check(); err != nil {
			return p, err
		}
	}
	var starting errgroup.Group
	missing := make(map[string]bool)
	for _, c := range choices {
		k, program, err := c.choose(out, missing)
		if err != nil {
			return p, errors.Join(err, starting.Wait())
		}
		c.place.kind = k
		p.mu.Lock()
		_, twice := p.started[k.name]
		if !twice {
			p.started[k.name] = ""
		}
		p.mu.Unlock()
		if twice || k.start == nil {
			continue
		}
		starting.Go(func() error { return p.startOne(ctx, c.flag, k, program) })
	}
	if err := starting.Wait(); err != nil {
		return p, err
	}
	for _, c := range choices {
		c.place.url = p.started[c.place.name]
	}
	fmt.Fprintf(out, "Orders are in %s, the stock is in %s, and %s is between them.\n", p.orders.title, p.stock.title, p.broker.title)
	if p.payments.name != nowhere.name {
		fmt.Fprintf(out, "Payments are in a third database, in %s.\n", p.payments.title)
	}
	return p, nil
}

// choice is a flag.
type choice struct {
	flag, name string
	kinds      []kind
	place      *place // is set
}

func (c choice) check() error {
	var allowed []string
	for _, k := range c.kinds {
		if c.name == k.name || c.name == auto {
			return nil
		}
		allowed = append(allowed, k.name)
	}
	return fmt.Errorf("-%s is %q: %s or auto are allowed", c.flag, c.name, strings.Join(allowed, ", "))
}

// choose returns the kind, and where its program is. A kind that is missing is said once.
func (c choice) choose(out io.Writer, missing map[string]bool) (k kind, program string, err error) {
	for _, k := range c.kinds {
		if c.name != auto && c.name != k.name {
			continue
		}
		program, err := find(k.program)
		if err != nil && c.name == auto {
			if !missing[k.name] {
				fmt.Fprintf(out, "%s is left out: %v.\n", k.title, err)
			}
			missing[k.name] = true
			continue
		}
		if err != nil {
			err = fmt.Errorf("-%s: %s: %w", c.flag, k.title, err)
		}
		return k, program, err
	}
	return k, "", fmt.Errorf("-%s: nothing is installed", c.flag)
}

func (p *places) startOne(ctx context.Context, flag string, k kind, program string) error {
	url, err := k.start(ctx, p, program)
	if err != nil {
		return fmt.Errorf("-%s: %s: %w", flag, k.title, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started[k.name] = url
	return nil
}

// close ends all servers and removes their files.
func (p *places) close() (err error) {
	for _, s := range slices.Backward(p.servers) {
		err = errors.Join(err, s.stop())
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// unused is the stock of a trial that delivers nothing, which needs no database of its own.
const unused = "unused"

// trial makes new tables, and everything else that the processes of a trial share.
func (p *places) trial(ctx context.Context, s settings) (t *trial, err error) {
	n := p.trials.Add(1)
	t = &trial{settings: s, roles: []string{producer, relay, relay, consumer, consumer}}
	if t.Orders, t.Locks, err = p.newDatabase(ctx, p.orders, fmt.Sprintf("orders_%d", n)); err != nil {
		return nil, err
	}
	if p.payments.name != nowhere.name {
		if t.Payments, _, err = p.newDatabase(ctx, p.payments, fmt.Sprintf("payments_%d", n)); err != nil {
			return nil, err
		}
	}
	if s.Stock == unused {
		t.Stock = t.Payments
	} else if t.Stock, t.StockLocks, err = p.newDatabase(ctx, p.stock, fmt.Sprintf("stock_%d", n)); err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	t.Shop, t.Broker, t.Stream = local(ports[0]), p.broker.url, fmt.Sprintf("orders%d", n)
	if p.broker.name == hook.name { // one process has the port
		t.Broker, t.roles = "http://"+local(ports[1]), []string{producer, relay, relay, consumer}
	}
	if s.Naive {
		t.roles = slices.DeleteFunc(t.roles, func(role string) bool { return role == relay })
	}
	return t, t.open(ctx)
}

// open opens the databases of a trial, and makes the tables.
func (t *trial) open(ctx context.Context) (err error) {
	if t.orders, err = openDatabase(ctx, t.Orders); err != nil {
		return err
	}
	if t.stock, err = openDatabase(ctx, t.Stock); err != nil {
		return errors.Join(err, t.close())
	}
	err = errors.Join(t.orders.createOrders(ctx), t.stock.createStock(ctx))
	if err == nil && t.Payments != "" {
		if t.payments, err = openDatabase(ctx, t.Payments); err == nil {
			err = t.payments.createPayments(ctx)
		}
	}
	if err != nil {
		err = errors.Join(err, t.close())
	}
	return err
}

// newDatabase returns the URL of a new database, and that of a store of locks.
func (p *places) newDatabase(ctx context.Context, at place, name string) (url, locks string, err error) {
	if at.url == "" {
		file := filepath.Join(p.dir, name)
		return "sqlite:" + file + ".db", "sqlite:" + file + "_locks.db", nil
	}
	d, err := openDatabase(ctx, at.url)
	if err != nil {
		return "", "", err
	}
	_, err = d.db.ExecContext(ctx, "CREATE DATABASE "+name)
	url = at.url[:strings.LastIndex(at.url, "/")+1] + name
	return url, url, errors.Join(err, d.db.Close())
}
