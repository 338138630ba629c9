package httpfence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/httpfence"
	"github.com/pawl-go/pawl/internal/fencetest"
)

func path(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }

// writes is path for requests that write.
func writes(r *http.Request) string {
	if r.Method == http.MethodGet {
		return ""
	}
	return path(r)
}

// serve starts a server, and returns its URL and a client that sends the token
// of the context.
func serve(t *testing.T, h http.Handler) (url string, client *http.Client) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	client = server.Client()
	client.Transport = &httpfence.Transport{Base: client.Transport}
	return server.URL, client
}

// put sends a text, with the token if there is one.
func put(ctx context.Context, client *http.Client, url string, token fence.Token, text string) (*http.Response, error) {
	if token != 0 {
		ctx = fence.WithToken(ctx, "it", token)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	reply, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	reply.Body = io.NopCloser(bytes.NewReader(body))
	return reply, err
}

// checkOnly is a guard without a Do.
type checkOnly struct{ fence.Guard }

// remote is a server as a guard: each resource is a path.
type remote struct {
	url    string
	client *http.Client
}

func (g remote) Check(ctx context.Context, resource string, token fence.Token) error {
	if resource == "" {
		return fence.ErrInvalid // a request for "/" needs no token
	}
	ctx = fence.WithToken(ctx, "it", token)
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, g.url, nil)
	if err != nil {
		return err
	}
	r.URL.Path = "/" + resource
	reply, err := g.client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode == http.StatusBadRequest {
		return fence.ErrInvalid
	}
	return httpfence.CheckResponse(reply)
}

func TestContract(t *testing.T) {
	for name, guard := range map[string]fence.Guard{"with Do": new(fence.Memory), "without": checkOnly{new(fence.Memory)}} {
		url, client := serve(t, httpfence.Handler(http.NotFoundHandler(), guard, path, nil))
		if err := fencetest.Contract(t.Context(), remote{url, client}, ""); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The handler runs inside the guard's step: what it writes never goes back.
func TestRace(t *testing.T) {
	var value atomic.Uint64
	url, client := serve(t, httpfence.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, value.Load())
			return
		}
		token, _ := fence.FromContext(r.Context(), "it")
		value.Store(uint64(token))
	}), new(fence.Memory), writes, nil))
	err := fencetest.Race(t.Context(), fencetest.Resource{
		Write: func(ctx context.Context, token fence.Token) error {
			reply, err := put(ctx, client, url+"/it", token, "")
			if err != nil {
				return err
			}
			return httpfence.CheckResponse(reply)
		},
		Read: func(ctx context.Context) (fence.Token, error) {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/it", nil)
			if err != nil {
				return 0, err
			}
			reply, err := client.Do(r)
			if err != nil {
				return 0, err
			}
			defer reply.Body.Close()
			text, err := io.ReadAll(reply.Body)
			if err != nil {
				return 0, err
			}
			return fence.ParseToken(string(text))
		},
	}, 8, 100)
	if err != nil {
		t.Error(err)
	}
}

type brokenGuard struct{}

func (brokenGuard) Check(context.Context, string, fence.Token) error {
	return errors.New("database 10.0.0.7 is down")
}

// TestStatus: which requests are refused, how, and that the handler does not see them.
func TestStatus(t *testing.T) {
	used := new(fence.Memory)
	if err := used.Check(t.Context(), "it", 5); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		guard    fence.Guard
		optional bool
		headers  []string
		status   int
		text     string
	}{
		{used, false, []string{"5"}, 200, "served 5"},
		{used, false, []string{"4"}, 412, "stale fencing token"},
		{used, false, nil, 428, "no Pawl-Fence header"},
		{used, true, nil, 200, "served 0"},
		{used, true, []string{"4"}, 412, "stale fencing token"},
		{used, true, []string{""}, 400, "decimal number"},
		{used, false, []string{"5", "5"}, 400, "one token"},
		{used, false, []string{"5, 5"}, 400, "one token"},
		{used, false, []string{"0"}, 400, "decimal number"},
		{used, false, []string{"-1"}, 400, "decimal number"},
		{used, false, []string{"+6"}, 400, "decimal number"},
		{used, false, []string{"06"}, 400, "decimal number"},
		{used, false, []string{"6.0"}, 400, "decimal number"},
		{used, false, []string{"0x6"}, 400, "decimal number"},
		{used, false, []string{"stale"}, 400, "decimal number"},
		{used, false, []string{"9007199254740992"}, 400, "decimal number"},
		{used, false, []string{"99999999999999999999999"}, 400, "decimal number"},
		{brokenGuard{}, false, []string{"5"}, 503, "could not be checked"},
		{used, false, []string{"5"}, 200, "served 5"}, // nothing of this has raised the mark
	} {
		served := false
		h := httpfence.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			served = true
			token, _ := fence.FromContext(r.Context(), "it")
			fmt.Fprint(w, "served ", token)
		}), row.guard, writes, &httpfence.Options{Optional: row.optional})
		r := httptest.NewRequest(http.MethodPut, "/it", nil)
		r.Header[httpfence.Header] = row.headers
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != row.status || !strings.Contains(w.Body.String(), row.text) || served != (row.status == 200) {
			t.Errorf("%q: %d %q, served %t, want %d %q", row.headers, w.Code, w.Body, served, row.status, row.text)
		}
		if strings.Contains(w.Body.String(), "10.0.0.7") {
			t.Errorf("it tells strangers: %s", w.Body)
		}
		err := httpfence.CheckResponse(w.Result())
		if stale := row.status == 412; errors.Is(err, fence.ErrStale) != stale || (err == nil) == stale {
			t.Errorf("%q: %v", row.headers, err)
		}
	}
}

// Another 412, as of If-Match, says nothing about the token.
func TestOtherPreconditions(t *testing.T) {
	if err := httpfence.CheckResponse(&http.Response{StatusCode: http.StatusPreconditionFailed}); err != nil {
		t.Error(err)
	}
}

// A request that needs no token is not looked at.
func TestUnguarded(t *testing.T) {
	h := httpfence.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "read") }), brokenGuard{}, writes, nil)
	r := httptest.NewRequest(http.MethodGet, "/it", nil)
	r.Header.Set(httpfence.Header, "nonsense")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Body.String() != "read" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestRefuse(t *testing.T) {
	h := httpfence.Handler(http.NotFoundHandler(), brokenGuard{}, path, &httpfence.Options{
		Refuse: func(w http.ResponseWriter, _ *http.Request, status int, err error) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"why": %q}`, err)
		},
	})
	r := httptest.NewRequest(http.MethodPut, "/it", nil)
	r.Header.Set(httpfence.Header, "5")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 503 || w.Body.String() != `{"why": "database 10.0.0.7 is down"}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A newer request waits for the older request that is being served.
func TestHandlerIsInsideTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		var value atomic.Uint64
		h := httpfence.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			token, _ := fence.FromContext(r.Context(), "it")
			if token == 1 {
				<-finish
			}
			value.Store(uint64(token))
		}), new(fence.Memory), path, nil)
		for _, token := range []string{"1", "2"} {
			r := httptest.NewRequest(http.MethodPut, "/it", nil)
			r.Header.Set(httpfence.Header, token)
			go h.ServeHTTP(httptest.NewRecorder(), r)
			synctest.Wait()
		}
		if value.Load() != 0 {
			t.Error("the newer request was served beside the older one")
		}
		close(finish)
		synctest.Wait()
		if value.Load() != 2 {
			t.Errorf("it ends with %d", value.Load())
		}
	})
}

// The transport sends the header it is told to send, and leaves the caller's request as it is.
// The transport leaves the caller's own header when it knows no token.
func TestTransport(t *testing.T) {
	var seen []string
	url, _ := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = r.Header.Values(httpfence.Header)
	}))
	fixed := func(*http.Request) (fence.Token, bool) { return 9, true }
	for _, row := range []struct {
		token     func(*http.Request) (fence.Token, bool)
		ctx, self string
		want      []string
	}{
		{nil, "", "", nil},
		{nil, "7", "", []string{"7"}},
		{nil, "", "8", []string{"8"}},
		{nil, "7", "8", []string{"7"}},
		{fixed, "", "", []string{"9"}},
		{fixed, "7", "", []string{"9"}},
	} {
		ctx := t.Context()
		if row.ctx != "" {
			token, _ := fence.ParseToken(row.ctx)
			ctx = fence.WithToken(ctx, "it", token)
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if row.self != "" {
			r.Header.Set(httpfence.Header, row.self)
		}
		reply, err := (&http.Client{Transport: &httpfence.Transport{Token: row.token}}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		reply.Body.Close()
		if fmt.Sprint(seen) != fmt.Sprint(row.want) {
			t.Errorf("%+v: sent %v", row, seen)
		}
		if r.Header.Get(httpfence.Header) != row.self {
			t.Errorf("the caller's request has %q", r.Header.Get(httpfence.Header))
		}
	}
}

// A request under two locks carries the token of the lock that protects its target, or is not
// sent. With the newer token of another lock the server would refuse the rightful holder from
// then on.
func TestTransportUnderTwoLocks(t *testing.T) {
	guard := new(fence.Memory)
	url, _ := serve(t, httpfence.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), guard, path, nil))
	outer := fence.WithToken(t.Context(), "order", 7)
	inner := fence.WithToken(outer, "stock", 9)
	send := func(ctx context.Context, transport *httpfence.Transport) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"/order", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		reply, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			return err
		}
		reply.Body.Close()
		return httpfence.CheckResponse(reply)
	}
	if err := send(inner, &httpfence.Transport{}); !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "Transport.Lock") {
		t.Errorf("sent without a word which token: %v", err)
	}
	if err := send(fence.WithToken(outer, "order", 7), &httpfence.Transport{}); err != nil {
		t.Errorf("after re-entry: %v", err)
	}
	for _, ctx := range []context.Context{inner, outer} {
		if err := send(ctx, &httpfence.Transport{Lock: path}); err != nil {
			t.Error(err)
		}
		if err := guard.Check(ctx, "order", 7); err != nil {
			t.Errorf("the holder is refused: %v", err)
		}
	}
}
