package open_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// idleCost is the cost of a process that only holds: connections, and requests from one heartbeat
// to the next. idleCost is counted with one lock and for each further lock.
type idleCost struct {
	connections int
	first, more float64
}

// counted starts a server of each kind, and returns its address, its URL, and a function that says how many requests the
// server has answered.
var counted = map[string]func(t *testing.T) (addr, url string, requests func() float64){
	"PostgreSQL": func(t *testing.T) (string, string, func() float64) {
		addr := testservers.Postgres(t).Addr
		db := asked(t, "pgx", testservers.PostgresURL(addr))
		return addr, postgresURL("")(addr), func() float64 {
			return scalar(t, db, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
		}
	},
	"MariaDB": func(t *testing.T) (string, string, func() float64) {
		addr := testservers.MariaDB(t).Addr
		db := asked(t, "mysql", testservers.MariaDBConfig(addr).FormatDSN())
		return addr, mysqlURL(addr), func() float64 {
			return scalar(t, db, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_CALL_PROCEDURE'")
		}
	},
	"Redis": func(t *testing.T) (string, string, func() float64) {
		addr := testservers.Redis(t).Addr
		raw, err := rueidis.NewClient(rueidis.ClientOption{ // this client sends no request by itself
			InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true, Dialer: net.Dialer{KeepAlive: -1},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(raw.Close)
		return addr, redisURL(addr), func() float64 { return commandsDone(t, raw) }
	},
	"etcd": func(t *testing.T) (string, string, func() float64) {
		addr := testservers.Etcd(t).Addr
		return addr, etcdURL(addr), func() float64 { return handled(t, addr) }
	},
	"ZooKeeper": func(t *testing.T) (string, string, func() float64) {
		addr := testservers.ZooKeeper(t).Addr
		return addr, zkURL(addr), func() float64 { return received(t, addr) }
	},
	"NATS": func(t *testing.T) (string, string, func() float64) {
		addr := testservers.NATS(t).Addr
		return addr, natsURL(addr), published(t, addr)
	},
}

// TestIdleHolders counts in the server, and compares with the table of docs/choosing.md.
func TestIdleHolders(t *testing.T) {
	for _, store := range []struct {
		name  string
		costs idleCost
	}{
		{"PostgreSQL", idleCost{4, 2, 0}}, // the pool keeps one more where two requests met at the start
		{"MariaDB", idleCost{4, 2, 0}},    // as above
		{"Redis", idleCost{2, 8, 2}},
		{"etcd", idleCost{1, 3, 0.1}},
		{"ZooKeeper", idleCost{2, 6, 1}},
		{"NATS", idleCost{1, 2, 1}},
	} {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			addr, url, requests := counted[store.name](t)
			is := idle(t, addr, url, requests)
			t.Logf("%d connections, %.1f requests a heartbeat with one lock, %.2f for each further one", is.connections, is.first, is.more)
			first := store.costs.first + 0.5 // a sweep may fall into one measurement and not into the other
			if all := first + (store.costs.more+0.1)*furtherHeld; is.connections > store.costs.connections || is.first > first || is.first+is.more*furtherHeld > all {
				t.Errorf("more than %+v", store.costs)
			}
		})
	}
}

// furtherHeld is how many locks the client holds beside the first.
const furtherHeld = 10

// idle measures a client that holds one lock, and then eleven.
func idle(t *testing.T, addr, url string, requests func() float64) (is idleCost) {
	const heartbeats = 12
	before := connectionsTo(t, addr)
	var beats atomic.Int64
	c, err := pawl.New(t.Context(), connect(t, url), &pawl.Options{TTL: 1500 * time.Millisecond, Observe: func(_ context.Context, e pawl.Event) {
		if e.Kind == pawl.EventRenewed && e.Err == nil {
			beats.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())                  //nolint:errcheck // the session ends by itself
	after := func(n int64) (beat int64, asked float64) { // so many heartbeats later, and between two of them
		last := beats.Load() + n
		sessiontest.Until(t, "heartbeats", func() bool { return beats.Load() >= last })
		for beat = -1; beat != beats.Load(); {
			beat, asked = beats.Load(), requests()
		}
		return beat, asked
	}
	each := func() float64 {
		first, start := after(heartbeats / 2) // work that the locking left is done by then, and counted
		last, end := after(heartbeats)
		return (end - start) / float64(last-first)
	}
	hold := func(i int) {
		if _, err := c.Mutex(fmt.Sprintf("idle/%d", i)).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	hold(0)
	is.first = each()
	is.connections = connectionsTo(t, addr) - before
	for i := range furtherHeld {
		hold(i + 1)
	}
	is.more = (each() - is.first) / furtherHeld
	is.connections = min(is.connections, connectionsTo(t, addr)-before) // a connection that was made beside another ends when it idles
	return is
}

// connectionsTo counts the established connections of this machine to a port of it.
func connectionsTo(t *testing.T, addr string) (n int) {
	t.Helper()
	_, port, _ := strings.Cut(addr, ":")
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 3 && strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", number)) && fields[3] == "01" {
			n++
		}
	}
	return n
}

func asked(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	scalar(t, db, "SELECT 1") // its connection exists before the others are counted
	return db
}

func scalar(t *testing.T, db *sql.DB, query string) (n float64) {
	t.Helper()
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

var commandCalls = regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`)

// commandsDone is how many commands Redis has executed, also inside scripts.
func commandsDone(t *testing.T, raw rueidis.Client) (n float64) {
	t.Helper()
	stats, err := raw.Do(t.Context(), raw.B().Info().Section("commandstats").Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range commandCalls.FindAllStringSubmatch(stats, -1) {
		is, err := strconv.ParseFloat(stat[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		n += is
	}
	return n
}

// handled is how many requests etcd has answered; etcd counts those of a stream when the stream
// ends.
func handled(t *testing.T, addr string) (n float64) {
	t.Helper()
	reply, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "grpc_server_msg_received_total{") {
			i := strings.LastIndex(lines.Text(), " ")
			value, err := strconv.ParseFloat(lines.Text()[i+1:], 64)
			if err != nil {
				t.Fatal(err)
			}
			n += value
		}
	}
	return n
}

// received is how many requests ZooKeeper has received.
func received(t *testing.T, addr string) (n float64) {
	t.Helper()
	says, err := testservers.ZooKeeperSays(addr, "srvr")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(says) {
		if value, ok := strings.CutPrefix(line, "Received: "); ok {
			if n, err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// published says how many requests the clients of a nats-server have sent to JetStream, and how many writes.
func published(t *testing.T, addr string) func() float64 {
	t.Helper()
	nc, err := nats.Connect(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	var all []*nats.Subscription
	for _, subject := range []string{"$JS.API.>", "$KV.>"} {
		sub, err := nc.SubscribeSync(subject) // no message is taken, so all are pending
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sub)
	}
	return func() (n float64) {
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		for _, sub := range all {
			pending, _, err := sub.Pending()
			if err != nil {
				t.Fatal(err)
			}
			n += float64(pending)
		}
		return n
	}
}
