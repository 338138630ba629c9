package httpidem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/httpidem"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// site is a server behind the middleware, and its client.
type site struct {
	*testing.T
	leases  *idem.Leases
	url     string
	runs    atomic.Int64 // of the handler
	handler http.HandlerFunc
	errors  chan error // that Report was told
}

// byHeader is the identity of the caller in these tests.
func byHeader(r *http.Request) (string, error) {
	if user := r.Header.Get("X-User"); user != "" {
		return user, nil
	}
	return "", fmt.Errorf("no user")
}

// newSite starts a server; change may be nil.
func newSite(t *testing.T, eng engine.Engine, change func(*httpidem.Options), handler http.HandlerFunc) *site {
	t.Helper()
	return newSiteWith(t, eng, nil, change, handler)
}

func newSiteWith(t *testing.T, eng engine.Engine, sets *pawl.Options, change func(*httpidem.Options), handler http.HandlerFunc) *site {
	t.Helper()
	client, err := pawl.New(t.Context(), eng, sets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // nothing is lost
	s := &site{T: t, leases: idem.NewLeases(client, nil), handler: handler, errors: make(chan error, 100)}
	opts := &httpidem.Options{Identity: byHeader, Report: func(_ *http.Request, err error) { s.errors <- err }}
	if change != nil {
		change(opts)
	}
	wrap, err := httpidem.New(s.leases, opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		s.handler(w, r)
	})))
	t.Cleanup(server.Close)
	s.url = server.URL
	t.Cleanup(func() {
		for len(s.errors) > 0 {
			t.Log(<-s.errors)
		}
	})
	return s
}

// each runs a test on the memory engine and on Redis.
func each(t *testing.T, test func(t *testing.T, eng engine.Engine)) {
	t.Run("memory", func(t *testing.T) { test(t, memengine.New()) })
	t.Run("redis", func(t *testing.T) {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(t).Addr}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		eng := redisengine.New(c, &redisengine.Options{Prefix: "http-" + idem.NewToken()})
		if err := eng.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, eng)
	})
}

// request is one of the tests: a POST of user-7 unless it says otherwise.
type request struct {
	method, path, body, user string
	keys                     []string
}

// key is a request with this key.
func key(key string) request { return request{keys: []string{key}} }

func (r request) build(ctx context.Context, s *site) *http.Request {
	for _, d := range []struct {
		field *string
		value string
	}{{&r.method, "POST"}, {&r.path, "/pay"}, {&r.user, "user-7"}} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, s.url+r.path, strings.NewReader(r.body))
	if err != nil {
		s.Fatal(err)
	}
	req.Header["Idempotency-Key"] = r.keys
	if r.user != "-" {
		req.Header.Set("X-User", r.user)
	}
	return req
}

// answer is a response as it was on the connection.
type answer struct {
	*http.Response
	text string
}

func (s *site) send(r request) answer {
	s.Helper()
	reply, err := http.DefaultTransport.RoundTrip(r.build(s.Context(), s))
	if err != nil {
		s.Fatal(err)
	}
	defer reply.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		s.Fatal(err)
	}
	return answer{reply, string(body)}
}

// wantProblem fails unless the reply is a problem with this status.
func (s *site) wantProblem(a answer, status int) {
	s.Helper()
	var problem struct {
		Type, Title, Detail string
		Status              int
	}
	err := json.Unmarshal([]byte(a.text), &problem)
	if a.StatusCode != status || err != nil || problem.Status != status || problem.Title == "" || problem.Type == "" {
		s.Errorf("%s with %q: want a problem with %d", a.Status, a.text, status)
	}
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		s.Errorf("the problem is %s", got)
	}
	if again := status == 409 || status == 503; again != (a.Header.Get("Retry-After") == "1") {
		s.Errorf("%d with Retry-After %q", status, a.Header.Get("Retry-After"))
	}
}

const uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324"

// draftCase is requests to one server, of which the last is looked at.
type draftCase struct {
	name   string
	opts   func(*httpidem.Options)
	send   []request
	status int // of the last
	runs   int64
}

// draftCases are those of draft-ietf-httpapi-idempotency-key-header-07, sections 2.1, 2.6 and 2.7.
func draftCases() []draftCase {
	pages := func(o *httpidem.Options) { o.Documentation = "https://developer.example.com/idempotency" }
	bare := func(o *httpidem.Options) { o.Unquoted = true }
	optional := func(o *httpidem.Options) { o.Optional = true }
	small := func(o *httpidem.Options) { o.MaxKey, o.MaxBody = 4, 4 }
	return []draftCase{
		{"first", pages, []request{key(`"` + uuid + `"`)}, 201, 1},
		{"repeat", pages, []request{key(`"a"`), key(`"a"`)}, 201, 1},
		{"repeat of another spelling", pages, []request{key(`"a"`), key(` "a" `)}, 201, 1},
		{"other key", pages, []request{key(`"a"`), key(`"b"`)}, 201, 2},
		{"missing", pages, []request{{}}, 400, 0},
		{"missing, optional", optional, []request{{}, {}}, 201, 2},
		{"missing, and no method that needs it", pages, []request{{method: "GET"}, {method: "PUT"}}, 201, 2},
		{"missing PATCH", pages, []request{{method: "PATCH"}}, 400, 0},
		{"empty", optional, []request{key(`""`)}, 400, 0},
		{"empty header", optional, []request{key("")}, 400, 0},
		{"two keys", pages, []request{{keys: []string{`"a"`, `"a"`}}}, 400, 0},
		{"list", pages, []request{key(`"a", "b"`)}, 400, 0},
		{"parameter", pages, []request{key(`"a";b=1`)}, 400, 0},
		{"token", pages, []request{key(uuid)}, 400, 0},
		{"token by option", bare, []request{key(uuid), key(`"` + uuid + `"`)}, 201, 1},
		{"long key", small, []request{key(`"abcde"`)}, 400, 0},
		{"longest key", small, []request{key(`"abcd"`)}, 201, 1},
		{"long key by default", pages, []request{key(`"` + strings.Repeat("a", 256) + `"`)}, 400, 0},
		{"longest key by default", pages, []request{key(`"` + strings.Repeat("a", 255) + `"`)}, 201, 1},
		{"other body", pages, []request{{keys: []string{`"a"`}, body: "5"}, {keys: []string{`"a"`}, body: "6"}}, 422, 1},
		{"other path", pages, []request{key(`"a"`), {keys: []string{`"a"`}, path: "/refund"}}, 422, 1},
		{"other query", pages, []request{key(`"a"`), {keys: []string{`"a"`}, path: "/pay?x=1"}}, 422, 1},
		{"other method", pages, []request{key(`"a"`), {keys: []string{`"a"`}, method: "PATCH"}}, 422, 1},
		{"nobody", pages, []request{{keys: []string{`"a"`}, user: "-"}}, 403, 0},
		{"large body", small, []request{{keys: []string{`"a"`}, body: "12345"}}, 413, 0},
		{"largest body", small, []request{{keys: []string{`"a"`}, body: "1234"}}, 201, 1},
	}
}

// TestDraft: the cases of the draft.
func TestDraft(t *testing.T) {
	for _, c := range draftCases() {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, memengine.New(), c.opts, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusCreated)
				io.Copy(w, r.Body) //nolint:errcheck // the client reads it
			})
			var last answer
			for _, r := range c.send {
				last = s.send(r)
			}
			if last.StatusCode >= 400 {
				s.wantProblem(last, c.status)
			}
			if last.StatusCode != c.status || s.runs.Load() != c.runs {
				t.Errorf("%s, and the handler ran %d times; want %d and %d", last.Status, s.runs.Load(), c.status, c.runs)
			}
			if c.status == 201 && last.text != c.send[len(c.send)-1].body {
				t.Errorf("the handler read %q", last.text)
			}
			var opts httpidem.Options
			c.opts(&opts)
			link := "" // only problems that have a page link to that page
			if c.status >= 400 && opts.Documentation != "" {
				link = "<" + opts.Documentation + `>; rel="describedby"`
			}
			if is := last.Header.Get("Link"); is != link {
				t.Errorf("the link is %q, and not %q", is, link)
			}
		})
	}
}

// dump returns a response as text, without the headers in which a repeat differs.
func dump(t *testing.T, a answer) string {
	t.Helper()
	a.Header.Del("Date")
	a.Header.Del(httpidem.ReplayedHeader)
	a.Body = io.NopCloser(strings.NewReader(a.text))
	text, err := httputil.DumpResponse(a.Response, true)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestReplayIsIdentical: status, kept headers and body of a repeat are those of the first response, byte for byte. A header that is
// not in the list of kept ones is not replayed.
func TestReplayIsIdentical(t *testing.T) {
	binary := make([]byte, 70<<10) // a value of a store has 64 KiB
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	for name, handler := range map[string]http.HandlerFunc{
		"nothing":    func(http.ResponseWriter, *http.Request) {},
		"no content": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"declined":   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "declined", http.StatusPaymentRequired) },
		"sniffed":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"binary": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-pawl")
			w.WriteHeader(http.StatusCreated)
			for part := range slices.Chunk(binary, 999) {
				w.Write(part) //nolint:errcheck // the client reads it
			}
		},
		"headers": func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h["Link"] = []string{"<a>; rel=b", "<c>; rel=d\r\nX-Bad: 1"}
			h.Set("Location", " /payments/17\t")
			h.Set("X-Balance", "é: 1")
			w.WriteHeader(http.StatusSeeOther)
			h.Set("Location", "/too/late")
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, eng engine.Engine) {
				s := newSite(t, eng, func(o *httpidem.Options) { o.Headers = []string{"x-balance"} }, handler)
				first, repeat := s.send(key(`"a"`)), s.send(key(`"a"`))
				if first.Header.Get(httpidem.ReplayedHeader) != "" || repeat.Header.Get(httpidem.ReplayedHeader) != "true" || s.runs.Load() != 1 {
					t.Errorf("%d runs, and the repeat is %v", s.runs.Load(), repeat.Header)
				}
				if a, b := dump(t, first), dump(t, repeat); a != b {
					t.Errorf("first %q\nrepeat %q", a, b)
				}
				if first.Header.Get("Location") == "/too/late" {
					t.Error("a header changed after it was sent")
				}
			})
		})
	}
	s := newSite(t, memengine.New(), nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "secret=1")
	})
	if first, repeat := s.send(key(`"a"`)), s.send(key(`"a"`)); first.Header.Get("Set-Cookie") == "" || repeat.Header.Get("Set-Cookie") != "" {
		t.Errorf("cookies %q and %q", first.Header.Get("Set-Cookie"), repeat.Header.Get("Set-Cookie"))
	}
}

// FuzzRequest: with every header and body of a client, the handler runs at most once for a key. A repeat gets the
// bytes of the first response.
func FuzzRequest(f *testing.F) {
	f.Add(`"a"`, "/pay", []byte("5"), "text/plain", 200)
	f.Add(`a`, "/%2F?x=%00", []byte{}, "a\nb", 204)
	f.Add(`"\"`, "", []byte("\n"), "", 500)
	client, err := pawl.New(f.Context(), memengine.New(), nil)
	if err != nil {
		f.Fatal(err)
	}
	defer client.Close(context.Background()) //nolint:errcheck // nothing is lost
	leases := idem.NewLeases(client, nil)
	f.Fuzz(func(t *testing.T, header, path string, body []byte, kind string, status int) {
		user, runs := idem.NewToken(), 0
		wrap, err := httpidem.New(leases, &httpidem.Options{Unquoted: true, Identity: func(*http.Request) (string, error) { return user, nil }})
		if err != nil {
			t.Fatal(err)
		}
		status = 200 + max(status, -status)%400
		handler := wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(max(status, 200))
			io.Copy(w, r.Body) //nolint:errcheck // it is kept in memory
		}))
		send := func(body []byte) *httptest.ResponseRecorder {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.URL.Path, r.Header["Idempotency-Key"] = path, []string{header}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w
		}
		first, repeat := send(body), send(body)
		switch {
		case runs == 0:
			if first.Code != http.StatusBadRequest || repeat.Code != http.StatusBadRequest {
				t.Errorf("%d and %d without a run", first.Code, repeat.Code)
			}
			return
		case first.Code != status || repeat.Code != status || !bytes.Equal(first.Body.Bytes(), repeat.Body.Bytes()):
			t.Errorf("first %d %q, repeat %d %q", first.Code, first.Body, repeat.Code, repeat.Body)
		}
		final := status < 500 && status != 408 && status != 425 && status != 429
		if final != (runs == 1) {
			t.Errorf("%d runs with status %d", runs, status)
		}
		if other := send(append(body, 'x')); final && other.Code != http.StatusUnprocessableEntity {
			t.Errorf("another body: %d", other.Code)
		}
	})
}
