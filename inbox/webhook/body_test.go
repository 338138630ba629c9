package webhook

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sender "github.com/pawl-go/pawl/outbox/webhook"
)

// TestUnreadBody: a body that stalls is answered, and its connection ends. net/http waits for the rest of such a body, which never comes.
func TestUnreadBody(t *testing.T) {
	for name, c := range map[string]struct {
		want    string
		method  string
		length  int
		sent    string
		busy    bool
		wait    time.Duration
		timeout time.Duration // of the server
	}{
		"stalled":              {"503", "POST", 100, "x", false, 200 * time.Millisecond, 0},
		"the server's timeout": {"503", "POST", 100, "x", false, time.Hour, 200 * time.Millisecond},
		"a long timeout":       {"503", "POST", 100, "x", false, 200 * time.Millisecond, time.Hour},
		"another method":       {"405", "PUT", 100, "x", false, 200 * time.Millisecond, 0},
		"one too many":         {"503", "POST", 100, "x", true, 200 * time.Millisecond, 0},
		"too large":            {"413", "POST", 200, strings.Repeat("x", 150), false, 200 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, err := New(&Options{Wait: c.wait, Requests: 1, MaxBody: 100})
			if err != nil {
				t.Fatal(err)
			}
			if c.busy {
				source.places <- struct{}{}
			}
			server := httptest.NewUnstartedServer(source)
			server.Config.ReadTimeout = c.timeout
			server.Start()
			t.Cleanup(server.Close)
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()                                //nolint:errcheck // the end
			conn.SetDeadline(time.Now().Add(5 * time.Second)) //nolint:errcheck // the reads would fail
			if _, err := fmt.Fprintf(conn, "%s / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", c.method, c.length, c.sent); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 "+c.want) {
				t.Errorf("%v after %q, want %s and the end", err, got, c.want)
			}
		})
	}
}

// TestConnectionStays: an answer ends no connection of HTTP/2, where the others of its requests go on. Nor does an answer to a body that was read.
func TestConnectionStays(t *testing.T) {
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		source, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(source)
		if server.EnableHTTP2 = method == http.MethodPut; server.EnableHTTP2 {
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		for n := range 3 {
			reused := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(is httptrace.GotConnInfo) { reused = is.Reused }})
			r, err := http.NewRequestWithContext(ctx, method, server.URL, strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, answer.Body); err != nil {
				t.Error(err)
			}
			answer.Body.Close() //nolint:errcheck // it was read
			if reused != (n > 0) {
				t.Errorf("%s %d: the connection was reused: %v", method, n, reused)
			}
		}
	}
}

// slow is a body that comes late.
type slow struct {
	io.Reader
	after time.Duration
}

func (s *slow) Read(p []byte) (int, error) {
	<-time.After(s.after)
	s.after = 0
	return s.Reader.Read(p)
}

// TestWaitInAll: the body and the message together have Options.Wait.
func TestWaitInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, err := New(&Options{Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.Open(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/", &slow{strings.NewReader("x"), 45 * time.Second})
		r.Header = http.Header{"Ce-Id": {"1"}, "Ce-Time": {time.Now().Format(time.RFC3339)}, sender.HeaderID: {"1"}}
		w, began := httptest.NewRecorder(), time.Now()
		source.ServeHTTP(w, r)
		if took := time.Since(began); w.Code != http.StatusServiceUnavailable || took != time.Minute {
			t.Errorf("%d after %v", w.Code, took)
		}
	})
}
