//go:build unix

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
)

// serve starts a service and returns its address.
func serve(t *testing.T, store string, args ...string) (p *process, address string) {
	t.Helper()
	p = start(t, command(t, store, append([]string{"id", "serve", "--listen", "127.0.0.1:0"}, args...)...))
	return p, p.line()
}

// get asks the service, and fails the test unless the status is this one.
func get(t *testing.T, status int, url string, headers ...string) (text string, h http.Header) {
	t.Helper()
	return request(t, http.MethodGet, status, url, headers...)
}

// ready waits until the service is ready.
func ready(t *testing.T, at string) {
	t.Helper()
	eventually(t, "the service is ready", func() bool {
		answer, err := http.Get(at + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode == 200
	})
}

func request(t *testing.T, method string, status int, url string, headers ...string) (text string, h http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != status {
		t.Fatalf("%s %s: status %d, want %d: %s", method, url, answer.StatusCode, status, body)
	}
	return string(body), answer.Header
}

// TestID_serve_every_kind: many clients at once get unique IDs of each kind.
func TestID_serve_every_kind(t *testing.T) {
	t.Parallel()
	redis := "redis://" + testservers.SharedRedis(t).Addr
	for _, test := range []struct{ store, args string }{
		{"nonsense", "--kind uuid4"},
		{"nonsense", "--kind uuid7"},
		{sqliteStore(t), "--kind snowflake"},
		{sqliteStore(t), "--kind segment"},
		{"nonsense", "--kind segment --db " + postgresURL(t)},
		{"nonsense", "--kind sequence --step 2 --db " + mariadbURL(t) + " --db " + sqliteStore(t)},
		{sqliteStore(t), "--kind redis --db " + redis},
		{sqliteStore(t), "--kind readable --template O-{date:060102}-{n:9}-{digit}"},
	} {
		names := []string{fresh(t), fresh(t)}
		p, at := serve(t, test.store, append(strings.Fields(test.args), "--name", names[0], "--name", names[1])...)
		ready(t, at)
		for _, name := range names {
			var mu sync.Mutex
			var all []string
			var clients sync.WaitGroup
			for range 4 {
				clients.Go(func() {
					for _, n := range []string{"", "?n=1", "?n=100", "?n=1000"} {
						text, _ := get(t, 200, at+"/id/"+name+n)
						mu.Lock()
						all = append(all, strings.Fields(text)...)
						mu.Unlock()
					}
				})
			}
			clients.Wait()
			unique(t, 4*1102, all)
		}
		text, _ := get(t, 200, at+"/metrics")
		if want := fmt.Sprintf("name=%q} %d\n", names[1], 4*1102); !strings.Contains(text, "pawl_ids_total{kind=\"") || !strings.Contains(text, want) {
			t.Errorf("the metrics are %s", text)
		}
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 || p.errors() != "" {
			t.Errorf("%s: exit code %d: %s", test.args, code, p.errors())
		}
	}
}

func TestID_serve_answers(t *testing.T) {
	t.Parallel()
	p, at := serve(t, sqliteStore(t), "--kind", "segment", "--name", "a", "--name", `b/ä "c"`)
	text, h := get(t, 200, at+"/id/a?n=2")
	if text != "1\n2\n" || h.Get("Cache-Control") != "no-store" || !strings.HasPrefix(h.Get("Content-Type"), "text/plain") {
		t.Errorf("the answer is %q with %v", text, h)
	}
	text, h = get(t, 200, at+"/id/a?n=2", "Accept", "application/json;q=0.9, */*")
	var view struct{ IDs []string }
	if err := json.Unmarshal([]byte(text), &view); err != nil || !slices.Equal(view.IDs, []string{"3", "4"}) {
		t.Errorf("the answer is %s, %v", text, err)
	}
	if h.Get("Content-Type") != "application/json" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("the headers are %v", h)
	}
	for _, accept := range []string{"*/*", "text/plain, application/json", "text/html", "application/jsonx", "application/json;q=0", "application/json; Q=0.0, text/plain"} {
		if text, _ := get(t, 200, at+"/id/a", "Accept", accept); strings.Contains(text, "{") {
			t.Errorf("%s gives %s", accept, text)
		}
	}
	if text, _ := get(t, 200, at+"/id/b%2F%C3%A4%20%22c%22"); text != "1\n" {
		t.Errorf("another name gives %s", text)
	}
	for path, status := range map[string]int{
		"/id/a?n=0": 400, "/id/a?n=-1": 400, "/id/a?n=10001": 400, "/id/a?n=x": 400, "/id/a?n=": 400, "/id/a?n=1&n=2": 400,
		"/id/a?count=2": 400, "/id/a?n=1;x": 400, "/id/a?n=99999999999999999999": 400,
		"/id/nosuch": 404, "/id/": 404, "/id/a/": 404, "/": 404, "/healthz": 200,
	} {
		get(t, status, at+path)
	}
	request(t, http.MethodHead, 405, at+"/id/a")
	request(t, http.MethodPost, 405, at+"/id/a")
	if text, _ := get(t, 200, at+"/id/a?n=10000"); strings.Count(text, "\n") != 10000 {
		t.Errorf("%d IDs, want 10000", strings.Count(text, "\n"))
	}
	text, _ = get(t, 200, at+"/metrics")
	for _, line := range []string{
		"# TYPE pawl_ids_total counter", `pawl_ids_total{kind="segment",name="a"} 10010`, `pawl_id_requests_total{kind="segment",name="b/ä \"c\""} 1`,
		`pawl_id_failures_total{kind="segment",name="a"} 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("the metrics lack %s:\n%s", line, text)
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 || p.errors() != "" {
		t.Errorf("exit code %d: %s", code, p.errors())
	}
}

// TestID_serve_store_away: a service whose store is away is not ready, and says so.
func TestID_serve_store_away(t *testing.T) {
	t.Parallel()
	redis := testservers.Redis(t)
	p, at := serve(t, sqliteStore(t), "--kind", "redis", "--name", "a", "--db", "redis://"+redis.Addr)
	ready(t, at)
	get(t, 200, at+"/id/a")
	redis.Kill()
	get(t, 503, at+"/readyz")
	text, h := get(t, 503, at+"/id/a")
	if h.Get("Retry-After") == "" || text == "" {
		t.Errorf("the answer is %s with %v", text, h)
	}
	get(t, 200, at+"/healthz")
	text, _ = get(t, 200, at+"/metrics")
	if !strings.Contains(text, `pawl_id_failures_total{kind="redis",name="a"} 1`) {
		t.Errorf("the metrics are %s", text)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, p.errors())
	}
}

// TestID_serve_ends: the end of the service frees what it held. A silent client does not delay the
// end.
func TestID_serve_ends(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	p, at := serve(t, store, "--kind", "snowflake", "--name", "x")
	if is := states(t, store, "pawl:slots/snowflake/x"); is != "granted" {
		t.Errorf("claims: %q", is)
	}
	silent, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	get(t, 200, at+"/id/x")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 || p.errors() != "" {
		t.Errorf("exit code %d: %s", code, p.errors())
	}
	if is := states(t, store, "pawl:slots/snowflake/x"); is != "" {
		t.Errorf("claims are left: %s", is)
	}
}

func TestID_serve_refuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	for line, says := range map[string]string{
		"--name x":                                          `--kind is "": allowed are uuid4, uuid7, snowflake, segment, sequence, redis, readable`,
		"--kind nosuch --name x":                            `--kind is "nosuch"`,
		"--kind segment":                                    "--name is missing",
		"--kind uuid4 --name=":                              "--name is empty",
		"--kind segment --name x --name x":                  `--name "x" is given twice`,
		"--kind segment --name x --step 3":                  "--step is not for --kind segment",
		"--kind uuid4 --name x --template y":                "--template is not for --kind uuid4",
		"--kind snowflake --name x --bits 1/2/3":            "they must be 63 together",
		"--kind readable --name x":                          "--template is missing",
		"--kind segment --name x --db redis://h":            "redis is no SQL database",
		"--kind redis --name x --db sqlite:x":               "sqlite is no Redis",
		"--kind segment --name x y":                         "the form is: pawl id serve",
		"--kind segment --name x --listen 127.0.0.1:0 -n 3": "unknown shorthand flag: 'n'",
		"--kind uuid4 --name x --listen 127.0.0.1":          "HOST:PORT",
		"--kind uuid4 --name x --listen 127.0.0.1:99999":    "HOST:PORT",
	} {
		stdout, stderr := want(t, 64, "nonsense", append([]string{"id", "serve"}, append([]string{"--listen", "127.0.0.1:0"}, strings.Fields(line)...)...)...)
		complaint(t, stderr, says)
		if stdout != "" {
			t.Errorf("%s: prints %s", line, stdout)
		}
	}
	_, stderr := want(t, 69, "nonsense", "id", "serve", "--kind", "uuid4", "--name", "x", "--listen", taken.Addr().String())
	complaint(t, stderr, "address already in use")
	_, stderr = want(t, 64, stores["redis"](t), "id", "serve", "--listen", "127.0.0.1:0", "--kind", "segment", "--name", "x")
	complaint(t, stderr, "which is --allow-forgetting here")
}
