package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/group"
)

// beServer makes the test binary a server: a backend, or a bare proxy before the backend at this URL.
const beServer = "PAWL_BENCH_BE"

// serveAs is that server, and prints its address.
func serveAs(what string) int {
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("text ", 100)) //nolint:errcheck // the client sees it
	})
	if what != "backend" {
		to, err := url.Parse(what)
		if err != nil {
			panic(err)
		}
		handler = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() },
			Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}, BufferPool: &buffers{}}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("http://%s\n", listener.Addr())
	panic(http.Serve(listener, handler))
}

// buffers spare the bare proxy the 32 KiB that it makes for each response without them.
type buffers struct{ sync.Pool }

func (p *buffers) Get() []byte {
	if b, ok := p.Pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *buffers) Put(b []byte) { p.Pool.Put(&b) }

const (
	proxyConns = 32
	proxyRound = 2 * time.Second
)

// BenchmarkProxy has pawl proxy beside a bare httputil.ReverseProxy with a pool of buffers. Both have the same backend and client, and all
// are processes of their own, except for the client.
func BenchmarkProxy(b *testing.B) {
	program := filepath.Join(b.TempDir(), "pawl")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/pawl").CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	backend := startServer(b, exec.Command(self), beServer+"=backend")
	bare := startServer(b, exec.Command(self), beServer+"="+backend)
	store := "sqlite:" + filepath.Join(b.TempDir(), "pawl.db")
	eng, err := open.Open(ctx, store)
	if err != nil {
		b.Fatal(err)
	}
	member, err := group.New(client(b, eng), "api").Join(ctx, group.Member{Addr: strings.TrimPrefix(backend, "http://")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { member.Leave(ctx) }) //nolint:errcheck // the benchmark is over
	proxy := startServer(b, exec.Command(program, "proxy", "--listen", "127.0.0.1:0", "--group", "api", "--drain", "0"), "PAWL_STORE="+store)
	var ours, floor samples
	for b.Loop() {
		for range turns {
			floor = append(floor, roundTrips(b, bare))
			ours = append(ours, roundTrips(b, proxy))
		}
	}
	compare(b, "proxy, a request of 32 connections", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 1/.8)
}

// startServer starts a server and returns the address that it prints.
func startServer(b *testing.B, cmd *exec.Cmd, env ...string) string {
	b.Helper()
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// roundTrips sends requests by all connections for a while, and returns the time of the whole by the number of requests. The
// client does as little as it can, because it shares the cores with the proxy.
func roundTrips(b *testing.B, to string) time.Duration {
	b.Helper()
	var n atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range proxyConns {
		wg.Go(func() {
			if err := send(strings.TrimPrefix(to, "http://"), began.Add(proxyRound), &n); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return time.Since(began) / time.Duration(n.Load())
}

// send sends one request after another until the time has come.
func send(addr string, until time.Time, n *atomic.Int64) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	request := []byte("GET /some/path?n=1 HTTP/1.1\r\nHost: api\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
	r := textproto.NewReader(bufio.NewReader(conn))
	for time.Now().Before(until) {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		size := -1
		for first := true; ; first = false {
			line, err := r.ReadLine()
			if err != nil {
				return err
			}
			if line == "" {
				break
			}
			if first && !strings.HasPrefix(line, "HTTP/1.1 200 ") {
				return errors.New(line)
			}
			if text, ok := strings.CutPrefix(line, "Content-Length: "); ok {
				if size, err = strconv.Atoi(text); err != nil {
					return err
				}
			}
		}
		if _, err := r.R.Discard(size); err != nil {
			return err
		}
		n.Add(1)
	}
	return nil
}
