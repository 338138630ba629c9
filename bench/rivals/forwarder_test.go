package rivals

import (
	"context"
	stdsql "database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/rabbit"
	pawlstream "github.com/pawl-go/pawl/outbox/redisstream"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

const (
	relayed = 10_000 // messages of a round
	keys    = 1_000
)

// rivalDB is a database with the adapters of watermill-sql.
type rivalDB struct {
	*stdsql.DB
	dialect dialect.Dialect
	schema  sql.SchemaAdapter
	offsets sql.OffsetsAdapter
}

// rivalBroker is a broker with the publishers of both libraries.
type rivalBroker struct {
	ours   outbox.Publisher
	theirs message.Publisher
	make   func(name string) error // makes a stream or queue
	count  func(name string) (int64, error)
	least  float64 // how many times as fast as the forwarder the relay has to be; 0: it is not for us to say
}

// BenchmarkForwarder: a relay from a database to a broker, beside the forwarder of Watermill in the same run. Before, the
// tables are filled with messages of 256 bytes. Each library has its own tables and its own publisher. Both wait for the broker's
// confirms. The forwarder has one message under way, so the ratio depends on how long the broker takes for a confirm.
func BenchmarkForwarder(b *testing.B) {
	for name, open := range map[string]func(*testing.B) rivalDB{"postgres": openPostgres, "mariadb": openMariaDB} {
		for to, broker := range map[string]func(*testing.B) rivalBroker{"redis": redisBroker, "rabbitmq": rabbitBroker} {
			b.Run(name+"/"+to, func(b *testing.B) { benchForwarder(b, open(b), broker(b)) })
		}
	}
}

func openPostgres(b *testing.B) rivalDB {
	db := openDB(b, "pgx", testservers.PostgresURL(testservers.SharedPostgres(b).Addr))
	return rivalDB{db, dialect.PostgreSQL, sql.DefaultPostgreSQLSchema{}, sql.DefaultPostgreSQLOffsetsAdapter{}}
}

func openMariaDB(b *testing.B) rivalDB {
	config := testservers.MariaDBConfig(testservers.SharedMariaDB(b).Addr)
	config.InterpolateParams = true
	return rivalDB{openDB(b, "mysql", config.FormatDSN()), dialect.MySQL, sql.DefaultMySQLSchema{}, sql.DefaultMySQLOffsetsAdapter{}}
}

func openDB(b *testing.B, driver, source string) *stdsql.DB {
	db, err := stdsql.Open(driver, source)
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(40)
	b.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	return db
}

func redisBroker(b *testing.B) rivalBroker {
	addr := testservers.SharedRedis(b).Addr
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	ours, err := pawlstream.New(client, nil)
	if err != nil {
		b.Fatal(err)
	}
	rival := redis.NewClient(&redis.Options{Addr: addr})
	b.Cleanup(func() { rival.Close() }) //nolint:errcheck // as above
	theirs, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: rival}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	return rivalBroker{ours, theirs, func(string) error { return nil }, func(name string) (int64, error) { return rival.XLen(ctx, name).Result() }, 0}
}

// rabbitBroker confirms a message in about a millisecond. The publisher of Watermill has a pool of channels and waits for confirms.
func rabbitBroker(b *testing.B) rivalBroker {
	url := testservers.RabbitMQURL(testservers.SharedRabbitMQ(b).Addr)
	ours, err := rabbit.New(rabbit.Dial(url, amqp.Config{}), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ours.Close(ctx) }) //nolint:errcheck // as above
	config := wmamqp.NewDurableQueueConfig(url)
	config.Publish.ConfirmDelivery, config.Publish.ChannelPoolSize = true, 1
	theirs, err := wmamqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { theirs.Close() }) //nolint:errcheck // as above
	conn, err := amqp.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() }) //nolint:errcheck // as above
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	declare := func(name string) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, nil)
		return err
	}
	count := func(name string) (int64, error) {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return int64(q.Messages), err
	}
	return rivalBroker{ours, theirs, declare, count, 3}
}

func benchForwarder(b *testing.B, db rivalDB, to rivalBroker) {
	var ours, theirs time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		for is, round := range map[*time.Duration]func(*testing.B, rivalDB, rivalBroker, string) time.Duration{&ours: relayRound, &theirs: forwardRound} {
			name := fmt.Sprint("round_", time.Now().UnixNano())
			if err := to.make(name); err != nil {
				b.Fatal(err)
			}
			*is += round(b, db, to, name)
		}
	}
	n := float64(rounds * relayed)
	b.ReportMetric(n/ours.Seconds(), "pawl/s")
	b.ReportMetric(n/theirs.Seconds(), "watermill/s")
	ratio := theirs.Seconds() / ours.Seconds()
	b.ReportMetric(ratio, "ratio")
	if ratio < to.least {
		b.Errorf("the relay is %.1f times as fast as the forwarder, want %v", ratio, to.least)
	}
}

// relayRound fills an outbox, and returns how long a relay takes until all messages are confirmed.
func relayRound(b *testing.B, db rivalDB, to rivalBroker, name string) time.Duration {
	table, err := outbox.New(db.dialect, &outbox.Options{Table: name})
	if err == nil {
		err = table.Migrate(ctx, db.DB)
	}
	batch := make([]outbox.Message, 1000)
	for i := 0; i < relayed && err == nil; i += len(batch) {
		for j := range batch {
			batch[j] = outbox.Message{Topic: name, Key: fmt.Sprint("order-", (i+j)%keys), Payload: make([]byte, 256)}
		}
		_, err = table.Enqueue(ctx, db.DB, batch...)
	}
	if err != nil {
		b.Fatal(err)
	}
	c, _ := client(b)
	relay, err := table.Relay(c, db.DB, to.ours, &outbox.RelayOptions{OnError: func(err error) { b.Error(err) }})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- relay.Run(ctx) }()
	for left := 1; left > 0; time.Sleep(2 * time.Millisecond) {
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+name+" WHERE state <> 2").Scan(&left); err != nil {
			b.Fatal(err)
		}
	}
	took := time.Since(began)
	stop()
	if err := <-done; err != nil {
		b.Error(err)
	}
	return took
}

// forwardRound fills a table of watermill-sql, and returns how long its forwarder takes until all messages are in the broker.
func forwardRound(b *testing.B, db rivalDB, to rivalBroker, name string) time.Duration {
	logger := watermill.NopLogger{}
	handle := sql.BeginnerFromStdSQL(db.DB)
	in, err := sql.NewSubscriber(handle, sql.SubscriberConfig{SchemaAdapter: db.schema, OffsetsAdapter: db.offsets, InitializeSchema: true}, logger)
	if err != nil {
		b.Fatal(err)
	}
	if err := in.SubscribeInitialize(name); err != nil {
		b.Fatal(err)
	}
	table, err := sql.NewPublisher(handle, sql.PublisherConfig{SchemaAdapter: db.schema, AutoInitializeSchema: true}, logger)
	if err != nil {
		b.Fatal(err)
	}
	enveloped := forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: name})
	for range relayed / 1000 {
		batch := make([]*message.Message, 1000)
		for i := range batch {
			batch[i] = message.NewMessage(watermill.NewUUID(), make([]byte, 256))
		}
		if err := enveloped.Publish(name, batch...); err != nil {
			b.Fatal(err)
		}
	}
	f, err := forwarder.NewForwarder(in, kept{to.theirs}, logger, forwarder.Config{ForwarderTopic: name})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- f.Run(ctx) }()
	for n := int64(0); n < relayed; time.Sleep(2 * time.Millisecond) {
		if n, err = to.count(name); err != nil {
			b.Fatal(err)
		}
	}
	took := time.Since(began)
	if err := f.Close(); err != nil {
		b.Error(err)
	}
	if err := <-done; err != nil {
		b.Error(err)
	}
	return took
}

// kept is a publisher that the forwarder does not close, because the next round needs it.
type kept struct{ message.Publisher }

func (kept) Close() error { return nil }
