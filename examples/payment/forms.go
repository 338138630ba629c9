package main

import (
	"context"
	"database/sql"

	"github.com/pawl-go/pawl"
)

// form is a way of idempotency, as usual or by pawl.
type form struct {
	way, text    string
	killed, slow int // how often it pays in each test

	// pay is run by the server. The function calls s.middle at the place where the server is killed or slow.
	pay func(ctx context.Context, s *shop, key string) error

	// paid tells how often the order was paid. If it is nil, the bank tells.
	paid func(ctx context.Context, db *sql.DB) (int, error)

	// waits says that a second request does not come to its end before the first one.
	waits bool

	// lock is the lock that the first request loses while the server is slow.
	lock string
}

// shop is what one form uses in the server.
type shop struct {
	db     *sql.DB // a file that no other form uses
	client *pawl.Client
	bank   func(ctx context.Context, key string) error // charges the card; an empty key is none

	// middle returns at once, unless the server is to be killed or slow.
	middle func()
}

const (
	order   = "order-7"
	item    = "sku-7"
	units   = 100 // of the item, before the order
	segment = 4   // rows of the item
)

var forms = []form{
	{way: "1 global id", text: "look for the id, pay, note the id", killed: 2, slow: 2, pay: plainID},
	{way: "1 global id", text: "idem.Once, pay", killed: 1, slow: 1, pay: once},
	{way: "1 global id", text: "idem.Once, and killed before it pays", killed: 0, slow: 1, pay: onceBefore},
	{way: "1 global id", text: "idem.Leases, the bank does not record keys", killed: 2, slow: 1, pay: leaseWithoutKey, waits: true},
	{way: "1 global id", text: "idem.Leases, the bank records the key", killed: 1, slow: 1, pay: leaseWithKey, waits: true},
	{way: "2 dedupe table", text: "look, pay, insert the key", killed: 2, slow: 2, pay: plainTable, paid: payments},
	{way: "2 dedupe table", text: "idem.Do in the transaction", killed: 1, slow: 1, pay: table, paid: payments, waits: true},
	{way: "3 state machine", text: "read the state, pay, write the state", killed: 2, slow: 2, pay: plainState, paid: payments},
	{way: "3 state machine", text: "state.Table, pay if it has moved", killed: 1, slow: 1, pay: machine, paid: payments, waits: true},
	{way: "4 lock, check, update", text: "lock, check, pay, note", killed: 2, slow: 2, pay: plainLock, paid: payments, lock: "plain/" + order},
	{way: "4 lock, check, update", text: "sqlupdate.Updater", killed: 1, slow: 1, pay: lockCheckUpdate, paid: payments, lock: "order/" + order, waits: true},
	{way: "5 segments", text: "look, take from a row, note", killed: 2, slow: 2, pay: plainSegments, paid: takenPlainly},
	{way: "5 segments", text: "stock.Take beside idem.Run", killed: 1, slow: 1, pay: segments, paid: taken, waits: true},
}
