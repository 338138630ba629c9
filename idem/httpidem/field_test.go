package httpidem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/httpidem"
	"github.com/pawl-go/pawl/internal/faulty"
)

// The tests of this file are mistakes of others in the field, each named by its report, and what the draft leaves open.

// brief: so long last calls of a store that is away.
var brief = &pawl.Options{TTL: time.Second}

func paid(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") } //nolint:errcheck // the client reads it

// TestStoreDownIsRefused: aura-vault#581 let requests through while Redis was away, and golang-app/ecommerce#117 after any
// error of its store. Here that is an option, and the default refuses.
func TestStoreDownIsRefused(t *testing.T) {
	for _, let := range []bool{false, true} {
		for _, verb := range []string{faulty.Get, faulty.Enter, faulty.Put} {
			t.Run(fmt.Sprintf("%v, %s", let, verb), func(t *testing.T) {
				t.Parallel()
				store := faulty.New(memengine.New())
				s := newSiteWith(t, engine.Like(store.Engine, store), brief, func(o *httpidem.Options) { o.LetThrough = let }, func(w http.ResponseWriter, r *http.Request) {
					io.Copy(w, r.Body) //nolint:errcheck // the client reads it
				})
				store.Set(faulty.Fails, verb)
				a := s.send(request{keys: []string{`"a"`}, body: "5"})
				if let {
					if a.StatusCode != http.StatusOK || a.text != "5" || s.runs.Load() != 1 {
						t.Errorf("%s %q after %d runs", a.Status, a.text, s.runs.Load())
					}
				} else if s.wantProblem(a, http.StatusServiceUnavailable); s.runs.Load() != 0 {
					t.Error("the handler ran")
				}
				if err := <-s.errors; !errors.Is(err, pawl.ErrUnavailable) {
					t.Errorf("reported: %v", err)
				}
				store.Set(nil, verb)
				if a := s.send(request{keys: []string{`"a"`}, body: "5"}); a.StatusCode != http.StatusOK || a.text != "5" {
					t.Errorf("afterwards: %s %q", a.Status, a.text)
				}
			})
		}
	}
}

// TestClosedStoreIsRefused: a mistake of the program is no reason to let requests through either.
func TestClosedStoreIsRefused(t *testing.T) {
	client, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, memengine.New(), nil, paid)
	wrap, err := httpidem.New(idem.NewLeases(client, nil), &httpidem.Options{Identity: byHeader, LetThrough: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { s.runs.Add(1) })))
	defer server.Close()
	s.url = server.URL
	if s.wantProblem(s.send(key(`"a"`)), http.StatusInternalServerError); s.runs.Load() != 0 {
		t.Error("the handler ran")
	}
}

// TestInFlight: a middleware that keeps only finished responses runs both requests of a double click. Here the second is told to
// come again, on every server, and then gets the response of the first.
func TestInFlight(t *testing.T) {
	each(t, func(t *testing.T, eng engine.Engine) {
		began, goOn := make(chan bool), make(chan bool)
		slow := func(w http.ResponseWriter, r *http.Request) {
			began <- true
			<-goOn
			paid(w, r)
		}
		s, other := newSite(t, eng, nil, slow), newSite(t, eng, nil, slow)
		first := make(chan answer)
		go func() { first <- s.send(key(`"a"`)) }()
		<-began
		for _, at := range []*site{s, other} {
			at.wantProblem(at.send(key(`"a"`)), http.StatusConflict)
			at.wantProblem(at.send(request{keys: []string{`"a"`}, body: "6"}), http.StatusUnprocessableEntity)
		}
		goOn <- true
		if a, b := <-first, other.send(key(`"a"`)); a.text != "paid" || b.text != "paid" || s.runs.Load()+other.runs.Load() != 1 {
			t.Errorf("%q, %q after %d and %d runs", a.text, b.text, s.runs.Load(), other.runs.Load())
		}
	})
}

// TestKeysOfOtherUsers: a client that guesses a key of low entropy gets nothing of another client: the draft's security
// considerations.
func TestKeysOfOtherUsers(t *testing.T) {
	each(t, func(t *testing.T, eng engine.Engine) {
		s := newSite(t, eng, nil, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-User")) }) //nolint:errcheck // as above
		for _, user := range []string{"7", "7|1", "8"} {
			if a := s.send(request{keys: []string{`"1"`}, user: user}); a.text != user || a.Header.Get(httpidem.ReplayedHeader) != "" {
				t.Errorf("user %q got %q", user, a.text)
			}
		}
	})
	if _, err := httpidem.New(new(idem.Leases), nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("without Identity: %v", err)
	}
}

// TestResponseIsNotKept: a response that is too large or streamed reaches its client as it is. A repeat is told, and runs nothing.
func TestResponseIsNotKept(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"too large": func(w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				io.WriteString(w, strings.Repeat("x", 5)) //nolint:errcheck // the client reads it
			}
		},
		"large headers": func(w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				w.Header().Add("Link", strings.Repeat("x", idem.MaxResult/3))
			}
			io.WriteString(w, strings.Repeat("x", 10)) //nolint:errcheck // as above
		},
		"streamed": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "xxx")                                      //nolint:errcheck // as above
			if err := http.NewResponseController(w).Flush(); err != nil { // the client has it now
				panic(err)
			}
			io.WriteString(w, "yyy") //nolint:errcheck // as above
		},
		"trailer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			io.WriteString(w, "xxx") //nolint:errcheck // as above
			w.Header().Set("X-Sum", "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, memengine.New(), func(o *httpidem.Options) { o.MaxResponse = 14 }, handler)
			first := s.send(key(`"a"`))
			if first.StatusCode != http.StatusOK || len(first.text) < 3 || name == "trailer" && first.Trailer.Get("X-Sum") != "1" {
				t.Errorf("first: %s %q", first.Status, first.text)
			}
			for range 2 {
				s.wantProblem(s.send(key(`"a"`)), http.StatusGone)
			}
			if s.runs.Load() != 1 {
				t.Errorf("%d runs", s.runs.Load())
			}
		})
	}
}

// TestServerErrors: a response from 500 on, and a panic, let a repeat run again, unless an option keeps them.
func TestServerErrors(t *testing.T) {
	for _, keep := range []func(int) bool{nil, func(int) bool { return true }} {
		first := true
		s := newSite(t, memengine.New(), func(o *httpidem.Options) { o.Keep = keep }, func(w http.ResponseWriter, r *http.Request) {
			if first {
				first = false
				http.Error(w, "trouble", http.StatusInternalServerError)
				return
			}
			paid(w, r)
		})
		a, b := s.send(key(`"a"`)), s.send(key(`"a"`))
		if a.StatusCode != 500 || a.text != "trouble\n" || (keep == nil) != (b.text == "paid") || keep != nil && b.text != a.text {
			t.Errorf("%s %q, then %s %q", a.Status, a.text, b.Status, b.text)
		}
	}
	s := newSite(t, memengine.New(), nil, nil)
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		if s.runs.Load() == 1 {
			panic(http.ErrAbortHandler)
		}
		paid(w, r)
	}
	if reply, err := http.DefaultTransport.RoundTrip(key(`"a"`).build(t.Context(), s)); err == nil {
		reply.Body.Close() //nolint:errcheck // it fails already
		t.Error("a panic has a response")
	}
	a := s.send(key(`"a"`))
	for a.StatusCode == http.StatusConflict { // the claim ends after the connection, at the earliest
		a = s.send(key(`"a"`))
	}
	if a.text != "paid" || a.Header.Get(httpidem.ReplayedHeader) != "" {
		t.Errorf("after a panic: %s %q", a.Status, a.text)
	}
}

// TestClientDisconnects: the handler goes on, and a repeat gets its response.
func TestClientDisconnects(t *testing.T) {
	each(t, func(t *testing.T, eng engine.Engine) {
		began, gone, kept := make(chan bool), make(chan bool), make(chan error)
		s := newSite(t, eng, nil, nil)
		s.handler = func(w http.ResponseWriter, r *http.Request) {
			began <- true
			<-gone
			c, ok := httpidem.FromContext(r.Context())
			if !ok || c.Key().ID != "a" || c.Attempts() != 1 {
				t.Errorf("the claim is %v, %v", c, ok)
			}
			kept <- r.Context().Err()
			paid(w, r)
		}
		ctx, disconnect := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := http.DefaultTransport.RoundTrip(key(`"a"`).build(ctx, s)) //nolint:bodyclose // there is none
			left <- err
		}()
		<-began
		disconnect()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		gone <- true
		if err := <-kept; err != nil {
			t.Errorf("the handler is told %v", err)
		}
		a := s.send(key(`"a"`))
		for a.StatusCode == http.StatusConflict { // until the first has ended
			a = s.send(key(`"a"`))
		}
		if a.text != "paid" || a.Header.Get(httpidem.ReplayedHeader) != "true" || s.runs.Load() != 1 {
			t.Errorf("%s %q after %d runs", a.Status, a.text, s.runs.Load())
		}
	})
}

// TestTakenOver: a server whose key was taken over does not reply with its own response, because a repeat gets another. Others
// end the work of each other: powertools' records have no owner.
func TestTakenOver(t *testing.T) {
	eng := memengine.New()
	s, other := newSite(t, eng, nil, nil), newSite(t, eng, nil, paid)
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		c, _ := httpidem.FromContext(r.Context())
		e, found, err := other.leases.Show(r.Context(), c.Key())
		if err != nil || !found || e.Holder == nil {
			t.Errorf("%+v, %v, %v", e, found, err)
			return
		}
		eng.Expire(e.Holder.Session)
		if a := other.send(key(`"a"`)); a.text != "paid" {
			t.Errorf("the next server: %s %q", a.Status, a.text)
		}
		w.Header().Set("X-Late", "1")
		fmt.Fprint(w, "late") //nolint:errcheck // as above
	}
	a := s.send(key(`"a"`))
	if s.wantProblem(a, http.StatusConflict); a.Header.Get("X-Late") != "" {
		t.Error("a header of the late response is sent")
	}
	if err := <-s.errors; !errors.Is(err, idem.ErrTakenOver) {
		t.Errorf("reported: %v", err)
	}
	if a := s.send(key(`"a"`)); a.text != "paid" {
		t.Errorf("a repeat: %s %q", a.Status, a.text)
	}
}

// TestStoreEndsMeanwhile: the effect has happened, so the client gets the response, and the program is told.
func TestStoreEndsMeanwhile(t *testing.T) {
	store := faulty.New(memengine.New())
	s := newSiteWith(t, engine.Like(store.Engine, store), brief, nil, nil)
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		store.Set(faulty.Fails, faulty.Put)
		paid(w, r)
	}
	if a := s.send(key(`"a"`)); a.text != "paid" {
		t.Errorf("%s %q", a.Status, a.text)
	}
	if err := <-s.errors; !errors.Is(err, pawl.ErrUnavailable) {
		t.Errorf("reported: %v", err)
	}
}

// TestOptions: each mistake is named.
func TestOptions(t *testing.T) {
	for field, change := range map[string]func(*httpidem.Options){
		"Identity":      func(o *httpidem.Options) { o.Identity = nil },
		"Scope":         func(o *httpidem.Options) { o.Scope = "a/b" },
		"Methods":       func(o *httpidem.Options) { o.Methods = []string{"GET"} },
		"MaxKey":        func(o *httpidem.Options) { o.MaxKey = 256 },
		"MaxBody":       func(o *httpidem.Options) { o.MaxBody = -1 },
		"MaxResponse":   func(o *httpidem.Options) { o.MaxResponse = idem.MaxResult },
		"Headers":       func(o *httpidem.Options) { o.Headers = []string{"date"} },
		"RetryAfter":    func(o *httpidem.Options) { o.RetryAfter = 1 },
		"Documentation": func(o *httpidem.Options) { o.Documentation = "<a>" },
	} {
		opts := &httpidem.Options{Identity: byHeader}
		change(opts)
		if _, err := httpidem.New(new(idem.Leases), opts); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
