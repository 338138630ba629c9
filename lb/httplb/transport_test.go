package httplb_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// TestTurns: requests go to the nodes in turn, with the path and the Host of the caller. An update of the set holds from the next request on.
func TestTurns(t *testing.T) {
	var all []*node
	var addrs []string
	for range 3 {
		n := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host, r.URL) })
		all, addrs = append(all, n), append(addrs, n.addr())
	}
	set, b := balance(t, lb.RoundRobin, nil, addrs...)
	client := &http.Client{Transport: newTransport(t, b, nil)}
	for range 9 {
		res, err := client.Do(request(t, "GET", "http://books/list?of=all", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := text(t, res); got != "books/list?of=all" {
			t.Errorf("the node saw %s", got)
		}
	}
	for i, n := range all {
		if n.hits.Load() != 3 {
			t.Errorf("node %d got %d of 9 requests", i, n.hits.Load())
		}
	}
	if err := set.Update(lb.Node{ID: "c", Addr: addrs[2]}); err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(request(t, "GET", "http://books/", ""))
	if err != nil {
		t.Fatal(err)
	}
	if text(t, res); all[2].hits.Load() != 4 {
		t.Error("a request went to a node that is gone")
	}
	if err := set.Update(); err != nil {
		t.Fatal(err)
	}
	if res, err := client.Do(request(t, "POST", "http://books/", "text")); !errors.Is(err, lb.ErrNoNode) {
		t.Errorf("without nodes: %v, %v", res, err)
	}
}

// TestInFlight: a request is in flight until the end of the body, by its last byte, an error, or Close.
func TestInFlight(t *testing.T) {
	goOn := make(chan bool)
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			return
		}
		fmt.Fprint(w, "begin")
		http.NewResponseController(w).Flush() //nolint:errcheck // the client sees it
		select {
		case well := <-goOn:
			if !well {
				panic(http.ErrAbortHandler)
			}
		case <-r.Context().Done():
		}
	})
	set, b := balance(t, lb.LeastConnections, nil, n.addr())
	transport := newTransport(t, b, nil)
	for _, row := range []struct {
		end  string
		want func(io.ReadCloser) error
	}{
		{"last byte", func(body io.ReadCloser) error { goOn <- true; _, err := io.ReadAll(body); return err }},
		{"error", func(body io.ReadCloser) error {
			goOn <- false
			if _, err := io.ReadAll(body); err == nil {
				return errors.New("the body was cut, and has no error")
			}
			return nil
		}},
		{"close", func(body io.ReadCloser) error { return body.Close() }}, // last, because the node may learn of it later
	} {
		res, err := transport.RoundTrip(request(t, "GET", "http://books/", ""))
		if err != nil {
			t.Fatal(err)
		}
		if inFlight(set) != 1 {
			t.Errorf("%s: before the end %d requests are in flight", row.end, inFlight(set))
		}
		if err := row.want(res.Body); err != nil || inFlight(set) != 0 {
			t.Errorf("%s: %v, and %d requests are in flight", row.end, err, inFlight(set))
		}
		res.Body.Close() //nolint:errcheck // a second end changes nothing
		if inFlight(set) != 0 {
			t.Errorf("%s: after Close %d requests are in flight", row.end, inFlight(set))
		}
	}
	if _, err := transport.RoundTrip(request(t, "GET", "http://books/none", "")); err != nil || inFlight(set) != 0 {
		t.Errorf("without a body: %v, and %d requests are in flight", err, inFlight(set))
	}
}

// once is a body that cannot be had again, and tells of its end.
type once struct {
	io.Reader
	closed atomic.Bool
}

func (o *once) Close() error { o.closed.Store(true); return nil }

// repeated is a row of TestRepeats.
type repeated struct {
	method, key, body string
	streamed          bool
	good              string // the failures after which the request is answered
}

// TestLatency: neither an answer that lasts nor a slow upload is latency of the node.
func TestLatency(t *testing.T) {
	goOn := make(chan struct{})
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the caller sees it
		fmt.Fprint(w, "begin")
		http.NewResponseController(w).Flush() //nolint:errcheck // the caller sees it
		<-goOn
	})
	set, b := balance(t, lb.PeakEWMA, nil, n.addr())
	const slow = 50 * time.Millisecond
	var took time.Duration
	transport := newTransport(t, b, &httplb.Options{Observe: func(is httplb.Try) { took = is.Took }})
	r := request(t, "PUT", "http://books/", "")
	r.Body = io.NopCloser(&slowly{1, slow})
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	is := set.Nodes()[0]
	if is.Latency == 0 || is.Latency > took-slow || is.InFlight != 1 {
		t.Errorf("at the header: %+v, want a latency of less than %v", is, took-slow)
	}
	close(goOn)
	text(t, res)
	if end := set.Nodes()[0]; end.Latency != is.Latency || end.InFlight != 0 {
		t.Errorf("at the end: %+v, want %v", end, is.Latency)
	}
}

// TestRepeats: which requests go to another node after which failures of the first.
func TestRepeats(t *testing.T) {
	failing := func(fail http.HandlerFunc) string {
		return serve(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) //nolint:errcheck // the node fails in any case
			fail(w, r)
		}).addr()
	}
	failures := map[string]string{
		"refused": refuses(t),
		"cut":     failing(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
		"busy":    failing(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }),
		"hangs":   failing(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
	}
	well := serve(t, echo)
	for _, row := range []repeated{
		{method: "GET", good: "refused cut busy hangs"},
		{method: "PUT", body: "text", good: "refused cut busy hangs"},
		{method: "PUT", body: "text", streamed: true, good: "refused"},
		{method: "POST", good: "refused"},
		{method: "POST", body: "text", good: "refused"},
		{method: "POST", body: "text", streamed: true, good: "refused"},
		{method: "POST", body: "text", key: "k", good: "refused cut busy hangs"},
		{method: "PATCH", body: "text", key: "k", streamed: true, good: "refused"},
	} {
		for failure, addr := range failures {
			t.Run(row.method+" "+row.key+" "+failure, func(t *testing.T) {
				t.Parallel()
				tryRow(t, row, failure, addr, well.addr())
			})
		}
	}
}

// tryRow sends one request, to a node that fails and to a node that is well.
func tryRow(t *testing.T, row repeated, failure, addr, well string) {
	t.Helper()
	set, b := balance(t, lb.RoundRobin, &lb.SetOptions{EjectAfter: 1, Panic: -1}, addr, well)
	tries, most := 0, time.Minute
	if failure == "hangs" {
		most = 2 * time.Second // which the node that is well has, too
	}
	transport := newTransport(t, b, &httplb.Options{TryTimeout: most, Observe: func(httplb.Try) { tries++ }})
	r := request(t, row.method, "http://books/", row.body)
	body := &once{Reader: strings.NewReader(row.body)}
	if row.streamed {
		r.Body, r.GetBody = body, nil
	}
	if row.key != "" {
		r.Header.Set("Idempotency-Key", row.key)
	}
	res, err := transport.RoundTrip(r)
	answered := err == nil && res.StatusCode == 200 && text(t, res) == row.body
	if want := strings.Contains(row.good, failure); answered != want || want != (tries == 2) {
		t.Errorf("%+v, %s: answered is %v, want %v: %v", row, failure, answered, want, err)
	}
	if res != nil {
		res.Body.Close() //nolint:errcheck // nothing is left
	}
	if row.streamed && !body.closed.Load() {
		t.Errorf("%+v, %s: the body was not closed", row, failure)
	}
	if is := set.Nodes(); !is[0].Ejected || is[1].Ejected {
		t.Errorf("%+v, %s: the failure was not counted at the node: %+v", row, failure, is)
	}
	if failure == "hangs" && !answered && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v: the error of a time-out is %v", row, err)
	}
}

// TestLastAnswer: where no node is left, the caller gets the last response whole.
func TestLastAnswer(t *testing.T) {
	busy := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusServiceUnavailable) })
	for _, addrs := range [][]string{{busy.addr()}, {refuses(t), busy.addr()}} {
		set, b := balance(t, lb.PowerOfTwo, nil, addrs...)
		var seen []httplb.Try
		res, err := newTransport(t, b, &httplb.Options{Observe: func(is httplb.Try) { seen = append(seen, is) }}).RoundTrip(request(t, "GET", "http://books/", ""))
		if err != nil {
			if len(addrs) == 1 || len(seen) != 2 {
				t.Errorf("%v after %+v", err, seen)
			}
			continue
		}
		if got := text(t, res); res.StatusCode != 503 || got != "later\n" || inFlight(set) != 0 {
			t.Errorf("%d %q, and %d requests are in flight", res.StatusCode, got, inFlight(set))
		}
		if last := seen[len(seen)-1]; last.Status != 503 || last.Result != lb.Failed || last.N != len(seen) {
			t.Errorf("seen: %+v", seen)
		}
	}
}

// TestNotTheNode: mistakes of the caller, and a caller that gives up, are no failures of nodes. Nothing is repeated.
func TestNotTheNode(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the client ends it
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
		}
	})
	for name, spoil := range map[string]func(*http.Request) *http.Request{
		"header": func(r *http.Request) *http.Request { r.Header.Set("X", "a\nb"); return r },
		"scheme": func(r *http.Request) *http.Request { r.URL.Scheme = "ftp"; return r },
		"length": func(r *http.Request) *http.Request { r.ContentLength = 9; return r },
		"body": func(r *http.Request) *http.Request {
			body := io.MultiReader(strings.NewReader("t"), readError{})
			r.Body, r.GetBody = io.NopCloser(body), func() (io.ReadCloser, error) { return io.NopCloser(body), nil }
			return r
		},
		"canceled": func(r *http.Request) *http.Request {
			ctx, cancel := context.WithCancelCause(r.Context())
			cancel(errors.New("the user has left"))
			return r.WithContext(ctx)
		},
		"gone": func(r *http.Request) *http.Request {
			ctx, cancel := context.WithCancel(r.Context())
			r.URL.Path, r.Body, r.GetBody, r.ContentLength = "/wait", nil, nil, 0
			before := n.hits.Load()
			go func() {
				for n.hits.Load() == before && t.Context().Err() == nil {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
			return r.WithContext(ctx)
		},
	} {
		set, b := balance(t, lb.PowerOfTwo, &lb.SetOptions{EjectAfter: 1, Panic: -1}, n.addr(), n.addr()+".")
		if err := set.Update(lb.Node{ID: "a", Addr: n.addr()}, lb.Node{ID: "b", Addr: n.addr()}); err != nil {
			t.Fatal(err)
		}
		tries := 0
		transport := newTransport(t, b, &httplb.Options{Observe: func(httplb.Try) { tries++ }})
		res, err := transport.RoundTrip(spoil(request(t, "PUT", "http://books/", "text")))
		if err == nil {
			t.Errorf("%s: the response is %v", name, res.Status)
			res.Body.Close() //nolint:errcheck // nothing is left
		}
		if is := set.Nodes(); tries > 1 || is[0].Ejected || is[1].Ejected || inFlight(set) != 0 {
			t.Errorf("%s: %d tries, %+v: %v", name, tries, is, err)
		}
	}
}

type readError struct{}

func (readError) Read([]byte) (int, error) { return 0, errors.New("the disk is gone") }

// TestBudget: when all nodes fail, the repeats are a fifth of the requests, and the reserve.
func TestBudget(t *testing.T) {
	const requests = 500
	for budget, most := range map[float64]int64{0: requests + requests/5 + 20, -1: 3 * requests} {
		n := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		_, b := balance(t, lb.Random, nil, n.addr())
		set := []lb.Node{{ID: "a", Addr: n.addr()}, {ID: "b", Addr: n.addr()}, {ID: "c", Addr: n.addr()}}
		all, err := lb.NewSet(&lb.SetOptions{EjectAfter: -1}, set...)
		if err == nil {
			b, err = lb.New(all, lb.RoundRobin, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		transport := newTransport(t, b, &httplb.Options{Budget: budget, Reserve: 20})
		for range requests {
			res, err := transport.RoundTrip(request(t, "GET", "http://books/", ""))
			if err != nil {
				t.Fatal(err)
			}
			text(t, res)
		}
		if got := n.hits.Load(); got > most || got < most-1 {
			t.Errorf("budget %v: %d requests made %d tries, want %d", budget, requests, got, most)
		}
	}
}

// TestKilled: servers are killed and started one after another under load. No request fails, and none is in flight at the
// end. Without repeats requests fail under the same load.
func TestKilled(t *testing.T) {
	for _, tries := range []int{1, 4} {
		fleet, addrs := make([]*killable, 4), make([]string, 4)
		for i := range fleet {
			fleet[i] = newKillable(t)
			addrs[i] = fleet[i].addr
		}
		set, b := balance(t, lb.PeakEWMA, &lb.SetOptions{EjectAfter: 2, EjectFor: 20 * time.Millisecond}, addrs...)
		client := &http.Client{Transport: newTransport(t, b, &httplb.Options{Tries: tries, Reserve: 10_000})}
		var failed, done atomic.Int64
		var load sync.WaitGroup
		stop := make(chan struct{})
		for range 8 {
			load.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := get(t.Context(), client); err != nil {
						failed.Add(1)
					}
					done.Add(1)
				}
			})
		}
		for round := range 8 {
			k := fleet[round%len(fleet)]
			wait := func(more int64) {
				for at := done.Load(); done.Load() < at+more; {
					time.Sleep(time.Millisecond)
				}
			}
			wait(50)
			k.kill()
			wait(50)
			k.start(t)
		}
		close(stop)
		load.Wait()
		if n := inFlight(set); n != 0 {
			t.Errorf("%d requests are in flight", n)
		}
		t.Logf("%d tries: %d of %d requests failed", tries, failed.Load(), done.Load())
		if tries > 1 && failed.Load() > 0 {
			t.Errorf("%d of %d requests failed", failed.Load(), done.Load())
		}
		if tries == 1 && failed.Load() == 0 {
			t.Error("the test finds nothing wrong with a client that does not repeat")
		}
	}
}

// get needs a whole response.
func get(ctx context.Context, client *http.Client) error {
	r, err := http.NewRequestWithContext(ctx, "GET", "http://books/", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	if _, err = io.ReadAll(res.Body); err == nil && res.StatusCode != 200 {
		err = errors.New(res.Status)
	}
	return err
}

// TestOptions: a mistake names its field.
func TestOptions(t *testing.T) {
	_, turns := balance(t, lb.RoundRobin, nil)
	_, hash := balance(t, lb.SourceHash, nil)
	for field, opts := range map[string]httplb.Options{"Tries": {Tries: -1}, "TryTimeout": {TryTimeout: 1}, "Budget": {Budget: 2}, "Reserve": {Reserve: -1}} {
		_, err1 := httplb.NewTransport(turns, &opts)
		_, err2 := httplb.NewProxy(turns, &httplb.ProxyOptions{Options: opts})
		for _, err := range []error{err1, err2} {
			if !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
	for field, opts := range map[string]httplb.ProxyOptions{"Scheme": {Scheme: "ftp"}, "MaxRetryBody": {MaxRetryBody: -2}, "RetryAfter": {RetryAfter: 1},
		"ClientTimeout": {ClientTimeout: 1}} {
		if _, err := httplb.NewProxy(turns, &opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := httplb.NewTransport(hash, nil); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "Key") {
		t.Errorf("source hash without a key: %v", err)
	}
}
