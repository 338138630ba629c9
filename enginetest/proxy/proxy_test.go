package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	long  = 10 * time.Second
	short = 200 * time.Millisecond
)

// echo is a real server: it repeats the bytes that it gets, and remembers how many came.
type echo struct {
	addr string
	mu   sync.Mutex
	got  []byte
}

func serve(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &echo{addr: l.Addr().String()}
	var working sync.WaitGroup
	t.Cleanup(func() { l.Close(); working.Wait() }) //nolint:errcheck // the listener listens
	working.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			working.Go(func() { u.repeat(conn) })
		}
	})
	return u
}

func (u *echo) repeat(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 1)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
		u.mu.Lock()
		u.got = append(u.got, buf[0])
		u.mu.Unlock()
		if _, err := conn.Write(buf); err != nil {
			return
		}
	}
}

func (u *echo) heard() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return string(u.got)
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the connection may be closed
	return conn
}

// say sends one letter and returns the fault of its echo.
func say(conn net.Conn, letter byte, within time.Duration) error {
	if _, err := conn.Write([]byte{letter}); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	buf := make([]byte, 1)
	if _, err := io.ReadFull(conn, buf); err != nil {
		return err
	}
	if buf[0] != letter {
		return errors.New("another letter came: " + string(buf))
	}
	return nil
}

func works(t *testing.T, conn net.Conn, letter byte) {
	t.Helper()
	if err := say(conn, letter, long); err != nil {
		t.Fatalf("%c: %v", letter, err)
	}
}

func hangs(t *testing.T, conn net.Conn, letter byte) {
	t.Helper()
	var timeout net.Error
	if err := say(conn, letter, short); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("%c: %v, want a time-out", letter, err)
	}
}

func closed(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(long)) //nolint:errcheck // the read reports the fault
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("%v, want the end of the connection", err)
	}
}

func TestFreeze(t *testing.T) {
	server := serve(t)
	p := New(t, server.addr)
	before := dial(t, p)
	works(t, before, 'a')
	p.Freeze()
	hangs(t, before, 'b')
	during := dial(t, p)
	hangs(t, during, 'c')
	p.Thaw()
	closed(t, before)
	closed(t, during)
	works(t, dial(t, p), 'd')

	before = dial(t, p)
	works(t, before, 'e')
	p.FreezeReplies()
	hangs(t, before, 'f')
	p.Thaw()
	closed(t, before)
	works(t, dial(t, p), 'g')
	if got := server.heard(); got != "adefg" {
		t.Errorf("the server heard %q; b and c are lost, the reply of f is", got)
	}
}

func TestDelay(t *testing.T) {
	p := New(t, serve(t).addr)
	conn := dial(t, p)
	p.Delay(short)
	start := time.Now()
	works(t, conn, 'a')
	if took := time.Since(start); took < 2*short {
		t.Errorf("delayed twice by %v, took %v", short, took)
	}
	p.Delay(time.Hour)
	hangs(t, conn, 'b')
	p.Thaw()
	conn.SetReadDeadline(time.Now().Add(long)) //nolint:errcheck // the read reports the fault
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Errorf("what was delayed does not arrive: %v", err)
	}
	works(t, conn, 'c')
}

func TestCut(t *testing.T) {
	server := serve(t)
	p, other := New(t, server.addr), New(t, server.addr)
	conn, beside := dial(t, p), dial(t, other)
	works(t, conn, 'a')
	freeze, _, cut, heal := Together([]*Proxy{p, other})
	freeze()
	hangs(t, beside, 'b')
	p.Cut()
	closed(t, conn)
	if _, err := net.Dial("tcp", p.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("cut: %v, want connection refused", err)
	}
	heal()
	closed(t, beside)
	works(t, dial(t, p), 'c')
	works(t, dial(t, other), 'd')
	cut()
	heal()
	works(t, dial(t, p), 'e')
}

// The end of a connection reaches the other side, and bytes sent before it arrive.
func TestEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := New(t, l.Addr().String())
	client := dial(t, p)
	if _, err := client.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	server.SetReadDeadline(time.Now().Add(long)) //nolint:errcheck // the read reports the fault
	if got, err := io.ReadAll(server); err != nil || string(got) != "last words" {
		t.Errorf("%q, %v", got, err)
	}

	// A server that is away closes the connection of its client.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	closed(t, dial(t, p))
}
