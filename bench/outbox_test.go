package bench

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
)

const (
	relayed   = 100_000 // messages of a round
	keys      = 1_000
	outWindow = 64
)

// atOnce is a broker that confirms at once.
type atOnce struct{}

func (atOnce) Publish(context.Context, outbox.Message) error { return nil }

// BenchmarkOutboxRelay: a relay with all partitions and a broker that confirms at once. Beside it, as many clients read a window
// of rows and mark the rows with one statement. Then both while a transaction is in doubt. Before, the table is
// filled with messages of 256 bytes and 1,000 keys.
func BenchmarkOutboxRelay(b *testing.B) {
	b.Run("postgres", func(b *testing.B) {
		server := testservers.Postgres(b, "-c", "max_prepared_transactions=4")
		db := openDB(b, "pgx", testservers.PostgresURL(server.Addr))
		benchRelay(b, "PostgreSQL", dialect.PostgreSQL, db, "BEGIN", "PREPARE TRANSACTION 'doubt'", "ROLLBACK PREPARED 'doubt'")
	})
	b.Run("mariadb", func(b *testing.B) {
		benchRelay(b, "MariaDB", dialect.MySQL, openMariaDB(b), "XA START 'doubt'", "XA END 'doubt'", "XA PREPARE 'doubt'", "XA ROLLBACK 'doubt'")
	})
}

// openMariaDB connects as the documentation of the outbox recommends.
func openMariaDB(b *testing.B) *sql.DB {
	config := testservers.MariaDBConfig(testservers.MariaDB(b).Addr)
	config.InterpolateParams = true
	return openDB(b, "mysql", config.FormatDSN())
}

func benchRelay(b *testing.B, name string, d dialect.Dialect, db *sql.DB, begin string, ends ...string) {
	var bare, ours, bareDoubtful, doubtful samples
	for b.Loop() {
		bare = append(bare, roundOf(b, d, db, bareRelay))
		ours = append(ours, roundOf(b, d, db, relayAll))
		conn, err := db.Conn(ctx)
		if err != nil {
			b.Fatal(err)
		}
		last := len(ends) - 1
		run(b, conn, "CREATE TABLE IF NOT EXISTS doubt (n bigint)", begin, "INSERT INTO doubt VALUES (1)")
		run(b, conn, ends[:last]...)
		bareDoubtful = append(bareDoubtful, roundOf(b, d, db, bareRelay))
		doubtful = append(doubtful, roundOf(b, d, db, relayAll))
		run(b, conn, ends[last])
		conn.Close()
	}
	compare(b, name+" relay, a message", micros(ours.quantile(.5)), micros(bare.quantile(.5)), 1/.7)
	compare(b, name+" relay, in doubt, beside bare clients in doubt", micros(doubtful.quantile(.5)), micros(bareDoubtful.quantile(.5)), 1/.7)
	compare(b, name+" relay, a transaction in doubt", micros(doubtful.quantile(.5)), micros(ours.quantile(.5)), 1/.7)
}

// run runs statements on a connection.
func run(b *testing.B, conn *sql.Conn, statements ...string) {
	b.Helper()
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			b.Fatal(s, ": ", err)
		}
	}
}

// roundOf fills a new table, and returns the time of a message in a run that confirms all.
func roundOf(b *testing.B, d dialect.Dialect, db *sql.DB, all func(*testing.B, dialect.Dialect, *sql.DB, string, *outbox.Table)) time.Duration {
	b.Helper()
	name := fmt.Sprintf("outbox_%d", time.Now().UnixNano())
	table, err := outbox.New(d, &outbox.Options{Table: name})
	if err == nil {
		err = table.Migrate(ctx, db)
	}
	batch := make([]outbox.Message, 1000)
	for i := 0; i < relayed && err == nil; i += len(batch) {
		for j := range batch {
			batch[j] = outbox.Message{Topic: topic, Key: fmt.Sprint("order-", (i+j)%keys), Payload: make([]byte, 256)}
		}
		_, err = table.Enqueue(ctx, db, batch...)
	}
	if err == nil {
		_, err = db.ExecContext(ctx, map[dialect.Dialect]string{dialect.PostgreSQL: "VACUUM ANALYZE ", dialect.MySQL: "ANALYZE NO_WRITE_TO_BINLOG TABLE "}[d]+name)
	}
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	all(b, d, db, name, table)
	took := time.Since(began)
	var left int
	if err := db.QueryRow("SELECT COUNT(*) FROM " + name + " WHERE state <> 2").Scan(&left); err != nil || left > 0 {
		b.Fatal(left, err)
	}
	if _, err := db.ExecContext(ctx, "DROP TABLE "+name); err != nil {
		b.Fatal(err)
	}
	return took / relayed
}

// relayAll runs a relay to a broker that confirms at once, until all is confirmed.
func relayAll(b *testing.B, _ dialect.Dialect, db *sql.DB, _ string, table *outbox.Table) {
	relayTo(b, db, table, atOnce{})
}

// bareRelay reads and marks rows of each partition, a window at a time and in the order of their numbers.
func bareRelay(b *testing.B, d dialect.Dialect, db *sql.DB, name string, _ *outbox.Table) {
	var group sync.WaitGroup
	for part := range outbox.Partitions {
		group.Go(func() {
			for last := int64(0); ; {
				seqs, err := bareWindow(d, db, name, part, last)
				if err != nil {
					b.Error(err)
				}
				if len(seqs) == 0 || err != nil {
					return
				}
				last = seqs[len(seqs)-1]
			}
		})
	}
	group.Wait()
}

// bareWindow reads and marks a window of rows after a number, and returns their numbers.
func bareWindow(d dialect.Dialect, db *sql.DB, name string, part int, after int64) (seqs []int64, err error) {
	read := "SELECT seq, id, topic, `key`, headers, payload FROM " + name + " WHERE part = ? AND state = 0 AND seq > ? ORDER BY seq LIMIT ?"
	if d == dialect.PostgreSQL {
		read = "SELECT seq, id, topic, key, headers, payload FROM " + name + " WHERE part = $1 AND state = 0 AND seq > $2 ORDER BY seq LIMIT $3"
	}
	rows, err := db.Query(read, part, after, outWindow)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var seq int64
		var m outbox.Message
		var headers []byte
		if err := rows.Scan(&seq, &m.ID, &m.Topic, &m.Key, &headers, &m.Payload); err != nil {
			return nil, err
		}
		seqs = append(seqs, seq)
	}
	if err := rows.Close(); err != nil || len(seqs) == 0 {
		return nil, err
	}
	if d == dialect.PostgreSQL {
		_, err = db.Exec("UPDATE "+name+" SET state = 2 WHERE state = 0 AND seq = ANY($1)", seqs)
		return seqs, err
	}
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(seqs), " ", ","), "[]")
	_, err = db.Exec("UPDATE " + name + " SET state = 2 WHERE state = 0 AND seq IN (" + list + ")")
	return seqs, err
}
