package outbox_test

import (
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
)

// received counts the bytes that clients receive.
type received struct{ atomic.Int64 }

func (r *received) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &receiver{conn, r}, nil
}

type receiver struct {
	net.Conn
	all *received
}

func (r *receiver) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.all.Add(int64(n))
	return n, err
}

// receives returns the same database, whose answers are counted.
func (d *database) receives(t *testing.T) (*database, *received) {
	t.Helper()
	all, counted := new(received), *d
	if d.dialect == dialect.PostgreSQL {
		config, err := pgx.ParseConfig(d.source)
		if err != nil {
			t.Fatal(err)
		}
		config.DialFunc = all.dial
		counted.db = stdlib.OpenDB(*config)
	} else {
		config, err := mysql.ParseDSN(d.source)
		if err != nil {
			t.Fatal(err)
		}
		config.DialFunc = all.dial
		connector, err := mysql.NewConnector(config)
		if err != nil {
			t.Fatal(err)
		}
		counted.db = sql.OpenDB(connector)
	}
	t.Cleanup(func() { counted.db.Close() }) //nolint:errcheck // nothing is lost
	return &counted, all
}

// A backlog of messages, of which few have WindowBytes together, is read about once. A page that has enough bytes receives no
// further payloads. Larger ones would take longer than Timeout, and the partition would send nothing.
func TestABacklogOfLargeMessagesIsReadOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			var err error
			if d.table, err = outbox.New(kind, &outbox.Options{Table: d.name, MaxPayload: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			const messages, size, window = 100, 200_000, 500_000
			for i := range messages {
				d.enqueue(t, outbox.Message{Topic: "t", Key: inPartition("k", i), Payload: make([]byte, size)})
			}
			counted, all := d.receives(t)
			var done atomic.Int64
			p := publish(func(context.Context, outbox.Message) error { done.Add(1); return nil })
			_, stop := counted.runAs(t, newClient(t), p, outbox.RelayOptions{WindowBytes: window, OnError: func(err error) { t.Error(err) }})
			until(t, "all are sent", func() bool { return done.Load() >= messages })
			stop()
			if n := all.Load(); n < messages*size || n > 4*messages*size || done.Load() != messages {
				t.Errorf("%d bytes were received for %d messages of %d bytes, %d sendings", n, messages, size, done.Load())
			}
		})
	}
}
