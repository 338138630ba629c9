package inboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/inbox"
	inboxhook "github.com/pawl-go/pawl/inbox/webhook"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/webhook"
)

const (
	wholeKeys  = 50
	wholeBatch = 5     // messages of one transaction
	wholeAhead = 4_000 // messages that producers are ahead of the effects at most
	webhooks   = "webhook"
)

// wholeWorkers are the processes of TestWhole. Each works until the test says that all is over.
var wholeWorkers = map[string]func(*database, context.Context) error{
	"producer": (*database).produce, "relay": (*database).relay, "unconfirmed": (*database).relayUnconfirmed, "consumer": (*database).consumeWhole,
}

// number asks for one number.
func (d *database) number(ctx context.Context, query string) (n int, err error) {
	err = d.db.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

// over reports whether the test has ended the work. The test does so by a row in the database.
func (d *database) over(ctx context.Context) bool {
	n, err := d.number(ctx, "SELECT COUNT(*) FROM counts_"+d.name+" WHERE k < 0")
	return err == nil && n > 0
}

// untilOver returns a context that ends when all is over.
func (d *database) untilOver(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		for !d.over(ctx) && ctx.Err() == nil {
			time.Sleep(200 * time.Millisecond)
		}
		stop()
	}()
	return ctx, stop
}

// passing reports whether an error comes from a server that a test kills, or from another transaction.
func passing(err error) bool { return dialect.Again(err) || dialect.Lost(err) }

func (d *database) produced(ctx context.Context) (int, error) {
	return d.number(ctx, "SELECT COALESCE(SUM(n), 0) FROM counts_"+d.name+" WHERE k >= 0")
}

// reached is about how many messages took effect. Counting them would take longer each time.
func (d *database) reached(ctx context.Context) (int, error) {
	return d.number(ctx, "SELECT COALESCE(MAX(seq), 0) FROM effects_"+d.name)
}

// produce commits messages until there are enough, and then waits for the end. Now and then a producer changes its mind.
func (d *database) produce(ctx context.Context) error {
	target, err := strconv.Atoi(os.Getenv("PAWL_INBOX_MESSAGES"))
	if err != nil {
		return err
	}
	ahead, err := strconv.Atoi(os.Getenv("PAWL_INBOX_AHEAD"))
	if err != nil {
		return err
	}
	for !d.over(ctx) {
		n, err := d.produced(ctx)
		if err == nil && n < target {
			var there int
			if there, err = d.reached(ctx); err == nil && n-there < ahead {
				for i := 0; i < 10 && err == nil; i++ {
					err = d.produceOne(ctx, rand.IntN(wholeKeys), rand.IntN(20) > 0)
				}
				if err == nil {
					continue
				}
			}
		}
		if err != nil && !passing(err) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// produceOne serialises on the row of the key, as a business object would.
func (d *database) produceOne(ctx context.Context, key int, commits bool) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if err := d.enqueue(ctx, tx, key); err != nil || !commits {
		return err
	}
	return tx.Commit()
}

// enqueue counts up a key, and enqueues a message for each number.
func (d *database) enqueue(ctx context.Context, tx dialect.DB, key int) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE counts_%s SET n = n + %d WHERE k = %d", d.name, wholeBatch, key))
	if err != nil {
		return err
	}
	var n int
	if err := dialect.New(d.kind).Add("SELECT n FROM counts_"+d.name+" WHERE k = ").Value(key).Scan(ctx, tx, &n); err != nil {
		return err
	}
	table, err := d.table()
	if err != nil {
		return err
	}
	var batch []outbox.Message
	for i := n - wholeBatch + 1; i <= n; i++ {
		batch = append(batch, outbox.Message{ID: fmt.Sprintf("%d-%d", key, i), Topic: d.name, Key: strconv.Itoa(key), Payload: make([]byte, 256), Headers: map[string]string{"Trace": "t"}})
	}
	_, err = table.Enqueue(ctx, tx, batch...)
	return err
}

func (d *database) table() (*outbox.Table, error) {
	return outbox.New(d.kind, &outbox.Options{Table: "out_" + d.name})
}

// connected connects to the broker, which may be away now.
func (d *database) connected() (b broker, err error) {
	for range 6000 { // a busy machine starts a broker in minutes
		if b, err = brokers[os.Getenv("PAWL_INBOX_KIND")].connect(os.Getenv("PAWL_INBOX_BROKER"), d.name); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return b, err
}

// publisher returns a publisher to the broker, and its end.
func (d *database) publisher() (outbox.Publisher, func(), error) {
	if os.Getenv("PAWL_INBOX_KIND") == webhooks {
		p, err := webhook.New("http://"+os.Getenv("PAWL_INBOX_BROKER")+"/", webhook.Options{})
		return p, func() {}, err
	}
	b, err := d.connected()
	if err != nil {
		return nil, nil, err
	}
	p, err := b.outbox()
	return p, b.close, err
}

// locks returns a client of the lock store. On a busy machine a session may take longer than its TTL.
func locks(ctx context.Context) (client *pawl.Client, end func(), err error) {
	eng, err := open.Open(ctx, os.Getenv("PAWL_INBOX_STORE"))
	if err != nil {
		return nil, nil, err
	}
	client, err = pawl.New(ctx, eng, &pawl.Options{TTL: time.Second})
	for tries := 0; errors.Is(err, pawl.ErrUnavailable) && tries < 20; tries++ {
		client, err = pawl.New(ctx, eng, &pawl.Options{TTL: time.Second})
	}
	if err != nil {
		return nil, nil, errors.Join(err, eng.Close())
	}
	return client, func() { client.Close(context.Background()); eng.Close() }, nil //nolint:errcheck // its session ends anyway
}

func (d *database) relay(ctx context.Context) error {
	p, end, err := d.publisher()
	if err != nil {
		return err
	}
	defer end()
	client, endLocks, err := locks(ctx)
	if err != nil {
		return err
	}
	defer endLocks()
	table, err := d.table()
	if err != nil {
		return err
	}
	d.db.SetMaxOpenConns(20)
	r, err := table.Relay(client, d.db, p, &outbox.RelayOptions{Poll: 50 * time.Millisecond, Rescan: 2 * time.Second, Balance: 500 * time.Millisecond, Timeout: 10 * time.Second,
		Backoff: 10 * time.Millisecond, MaxBackoff: time.Second})
	if err != nil {
		return err
	}
	ctx, stop := d.untilOver(ctx)
	defer stop()
	return r.Run(ctx)
}

// relayUnconfirmed hands messages to the client of the broker, and deletes them without waiting for a confirm.
func (d *database) relayUnconfirmed(ctx context.Context) error {
	p, end, err := d.publisher()
	if err != nil {
		return err
	}
	defer end()
	for !d.over(ctx) {
		n, err := d.relayPage(ctx, p)
		if err != nil && !passing(err) {
			return err
		}
		if n == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

func (d *database) relayPage(ctx context.Context, p outbox.Publisher) (n int, err error) {
	rows, err := d.db.QueryContext(ctx, "SELECT seq, id, payload FROM out_"+d.name+" WHERE state = 0 ORDER BY seq LIMIT 100")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var sending sync.WaitGroup
	defer sending.Wait() // so that nothing is under way when the table is empty
	list := "0"
	for rows.Next() {
		var seq int64
		m := outbox.Message{Topic: d.name, Time: time.Now()}
		if err := rows.Scan(&seq, &m.ID, &m.Payload); err != nil {
			return 0, err
		}
		m.Key, _, _ = strings.Cut(m.ID, "-")
		list += fmt.Sprint(",", seq)
		n++
		sending.Go(func() {
			time.Sleep(50 * time.Millisecond) // the clients of some brokers gather messages so
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			p.Publish(ctx, m) //nolint:errcheck // that is what is wrong here
		})
	}
	if err := rows.Close(); err != nil || n == 0 {
		return 0, err
	}
	_, err = d.db.ExecContext(ctx, "DELETE FROM out_"+d.name+" WHERE seq IN ("+list+")")
	return n, err
}

// consumeWhole runs a consumer, whose handler fails now and then.
func (d *database) consumeWhole(ctx context.Context) error {
	ctx, stop := d.untilOver(ctx)
	defer stop()
	if os.Getenv("PAWL_INBOX_KIND") == webhooks {
		return d.serve(ctx, os.Getenv("PAWL_INBOX_BROKER"))
	}
	b, err := d.connected()
	if err != nil {
		return err
	}
	defer b.close()
	source, err := b.source()
	if err != nil {
		return err
	}
	client, end, err := locks(ctx)
	if err != nil {
		return err
	}
	defer end()
	single := client.Mutex("inbox/" + d.name)
	if os.Getenv("PAWL_INBOX_KIND") == quorum { // whose broker delivers to one process at a time
		single = nil
	}
	return d.consume(ctx, source, single)
}

// serve is the consumer of webhooks. The killed process before may still have the port for a moment.
func (d *database) serve(ctx context.Context, addr string) error {
	source, err := inboxhook.New(&inboxhook.Options{Wait: 5 * time.Second})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	for tries := 0; err != nil && tries < 600; tries++ {
		time.Sleep(100 * time.Millisecond)
		listener, err = net.Listen("tcp", addr)
	}
	if err != nil {
		return err
	}
	server := &http.Server{Handler: source}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	err = d.consume(ctx, source, nil)
	server.Close() //nolint:errcheck // nothing is lost
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// unlucky is a handler that fails now and then, after its effect.
func (d *database) unlucky(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
	err := d.effect(ctx, tx, m)
	if rand.IntN(30) == 0 {
		return errors.New("bad luck")
	}
	return err
}
