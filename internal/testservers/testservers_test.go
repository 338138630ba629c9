package testservers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// No server that answers takes longer than long, and no frozen server answers within short.
const long, short = 10 * time.Second, 300 * time.Millisecond

// ask sends one line over a new connection and returns the first line of the reply.
func ask(addr, line string, within time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, long)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return askOn(conn, line, within)
}

func askOn(conn net.Conn, line string, within time.Duration) (string, error) {
	conn.SetDeadline(time.Now().Add(within))
	if _, err := io.WriteString(conn, line+"\r\n"); err != nil {
		return "", err
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(reply), err
}

func want(t *testing.T, addr, line, reply string) {
	t.Helper()
	if got, err := ask(addr, line, long); err != nil || got != reply {
		t.Fatalf("%s: got %q, %v; want %q", line, got, err, reply)
	}
}

func wantTimeout(t *testing.T, err error) {
	t.Helper()
	var netErr net.Error
	if !errors.As(err, &netErr) || !netErr.Timeout() {
		t.Fatalf("got %v, want a timeout", err)
	}
}

func TestRedisForgetsWhenKilled(t *testing.T) {
	s := Redis(t)
	want(t, s.Addr, "SET k v", "+OK")
	s.Kill()
	if _, err := ask(s.Addr, "PING", long); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("killed: %v, want connection refused", err)
	}
	s.Restart()
	want(t, s.Addr, "EXISTS k", ":0")
}

func TestRedisKeepsWhatItsArgumentsSay(t *testing.T) {
	s := Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	want(t, s.Addr, "SET k v", "+OK")
	s.Restart()
	want(t, s.Addr, "EXISTS k", ":1")
	s.Stop()
	s.Restart()
	want(t, s.Addr, "EXISTS k", ":1")
}

func TestRedisWithPasswordIsReady(t *testing.T) {
	s := Redis(t, "--requirepass", "s3cret")
	if got, err := ask(s.Addr, "PING", long); err != nil || !strings.HasPrefix(got, "-NOAUTH") {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestPause(t *testing.T) {
	s := Redis(t)
	s.Pause()
	_, err := ask(s.Addr, "PING", short)
	wantTimeout(t, err)
	s.Resume()
	want(t, s.Addr, "PING", "+PONG")
	s.Pause()
	s.Stop() // a paused server can be stopped
}

func TestBadArgumentsAreTold(t *testing.T) {
	_, err := launch(redisKind, []string{"--no-such-option", "x"})
	if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "no-such-option") {
		t.Fatalf("got %v", err)
	}
	t.Setenv(redisKind.binary, "/nowhere/redis-server")
	_, err = launch(redisKind, nil)
	if err == nil || !strings.Contains(err.Error(), "make setup") {
		t.Fatalf("got %v", err)
	}
	if missing == nil {
		t.Fatal("the run would not fail")
	}
	missing = nil
}

func TestSharedIsOne(t *testing.T) {
	a, b := SharedRedis(t), SharedRedis(t)
	if a.Addr != b.Addr {
		t.Fatal("two servers")
	}
	want(t, a.Addr, "PING", "+PONG")
	t.Setenv(redisKind.given, "192.0.2.1:6379")
	if c := SharedRedis(t); c.Addr != "192.0.2.1:6379" {
		t.Fatalf("not the given server: %s", c.Addr)
	}
}

func health(addr string) error { return etcdReady(addr) }

// put and get go through the JSON gateway, to need no client.
func etcdCall(t *testing.T, addr, verb, body string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Post("http://"+addr+"/v3/kv/"+verb, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEtcd(t *testing.T) {
	s := Etcd(t)
	etcdCall(t, s.Addr, "put", `{"key":"aw==","value":"dg=="}`)
	s.Kill()
	if err := health(s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("killed: %v, want connection refused", err)
	}
	s.Restart()
	if got := etcdCall(t, s.Addr, "range", `{"key":"aw=="}`); !strings.Contains(got, `"value":"dg=="`) {
		t.Fatalf("lost its data: %s", got)
	}
	s.Pause()
	wantTimeout(t, health(s.Addr))
	s.Resume()
	s.proc.awaitReady() //nolint:errcheck // checked next
	if err := health(s.Addr); err != nil {
		t.Fatal(err)
	}
}

func TestNATS(t *testing.T) {
	s := NATS(t)
	s.Kill()
	if err := natsReady(s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("killed: %v, want connection refused", err)
	}
	s.Restart()
	s.Pause()
	wantTimeout(t, natsReady(s.Addr))
	s.Resume()
	if err := natsReady(s.Addr); err != nil {
		t.Fatal(err)
	}
	says, err := ask(s.Addr, "", long)
	if err != nil || !strings.Contains(says, `"jetstream":true`) {
		t.Errorf("it says %s, %v", says, err)
	}
}

func TestRabbitMQ(t *testing.T) {
	s := RabbitMQ(t)
	open := func() (*amqp.Connection, *amqp.Channel) {
		conn, err := amqp.Dial(RabbitMQURL(s.Addr))
		if err != nil {
			t.Fatal(err)
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		return conn, ch
	}
	conn, ch := open()
	if _, err := ch.QueueDeclare("kept", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirm, err := ch.PublishWithDeferredConfirm("", "kept", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
	if err != nil || !confirm.Wait() {
		t.Fatal("no confirm", err)
	}
	RabbitMQControl(t, s, "eval", "mnesia:sync_log().") // a queue that was declared a moment ago may be lost
	s.Kill()
	conn.Close() //nolint:errcheck // it is dead
	if err := rabbitmqReady(s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("killed: %v, want connection refused", err)
	}
	s.Restart()
	conn, ch = open()
	if _, ok, err := ch.Get("kept", true); !ok || err != nil {
		t.Fatalf("lost its data: %v", err)
	}
	s.Pause()
	if err := rabbitmqLogin(s.Addr, time.Second); err == nil || !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("frozen: %v", err)
	}
	s.Resume()
	RabbitMQControl(t, s, "eval", "ok.")
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// A server must not outlive a killed test process.
func TestServerDiesWithTheProcess(t *testing.T) {
	if os.Getenv("PAWL_TEST_CHILD") != "" {
		fmt.Println("addr", Redis(t).Addr)
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTheProcess$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), "PAWL_TEST_CHILD=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	if _, err := fmt.Fscanf(bufio.NewReader(out), "addr %s\n", &addr); err != nil {
		t.Fatal(err)
	}
	want(t, addr, "PING", "+PONG")
	cmd.Process.Kill() //nolint:errcheck // waited for next
	cmd.Wait()         //nolint:errcheck // it was killed
	deadline := time.Now().Add(time.Minute)
	for redisReady(addr) == nil {
		if time.Now().After(deadline) {
			t.Fatal("the server still runs")
		}
		time.Sleep(time.Millisecond)
	}
}
