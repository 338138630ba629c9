package httplb_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// slowly is a body of which each part takes some time.
type slowly struct {
	parts int
	each  time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	if s.parts == 0 {
		return 0, io.EOF
	}
	s.parts--
	<-time.After(s.each)
	return copy(p, "part"), nil
}

// TestSlowUpload: a body that comes slowly is no failure of its node, however long the whole body takes.
func TestSlowUpload(t *testing.T) {
	t.Parallel()
	n := serve(t, echo)
	set, b := balance(t, lb.RoundRobin, &lb.SetOptions{EjectAfter: 1, Panic: -1}, n.addr())
	url, client := front(t, newProxy(t, b, &httplb.ProxyOptions{ClientTimeout: 10 * time.Second, Options: httplb.Options{TryTimeout: 2500 * time.Millisecond}}))
	plain := httptest.NewServer(newProxy(t, b, &httplb.ProxyOptions{ClientTimeout: 10 * time.Second, Options: httplb.Options{TryTimeout: 2500 * time.Millisecond}}))
	t.Cleanup(plain.Close)
	ended := make(chan struct{})
	for to, by := range map[string]*http.Client{url: client, plain.URL: plain.Client()} {
		go func() {
			defer func() { ended <- struct{}{} }()
			res, err := by.Post(to, "text/plain", &slowly{parts: 5, each: 600 * time.Millisecond})
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close() //nolint:errcheck // it was read
			if got, err := io.ReadAll(res.Body); res.StatusCode != 200 || string(got) != strings.Repeat("part", 5) {
				t.Errorf("%s: status %d, %q, %v", res.Proto, res.StatusCode, got, err)
			}
		}()
	}
	<-ended
	<-ended
	if is := set.Nodes(); is[0].Ejected {
		t.Error("the node was ejected")
	}
}

// TestSilentNode: a node that takes nothing of a body, or does not answer after a whole body, is silent.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	end := make(chan struct{}) // a server does not see the end of a connection before it has read the body
	t.Cleanup(func() { close(end) })
	for name, read := range map[string]bool{"takes nothing": false, "does not answer": true} {
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if read {
				io.Copy(io.Discard, r.Body) //nolint:errcheck // the client ends it
			}
			<-end
		}))
		t.Cleanup(func() { go s.Close() })
		set, b := balance(t, lb.RoundRobin, &lb.SetOptions{EjectAfter: 1, Panic: -1}, s.Listener.Addr().String())
		transport := newTransport(t, b, &httplb.Options{TryTimeout: 100 * time.Millisecond, Tries: 1})
		res, err := transport.RoundTrip(request(t, "PUT", "http://books/", strings.Repeat("text", 4<<20)))
		if err == nil {
			res.Body.Close() //nolint:errcheck // the test has failed
			t.Errorf("%s: status %d", name, res.StatusCode)
		}
		if is := set.Nodes(); !is[0].Ejected {
			t.Errorf("%s: not ejected after %v", name, err)
		}
	}
}

// stalls is a node whose responses depend on the path.
func stalls(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/endless":
		for r.Context().Err() == nil {
			w.Write(make([]byte, 1<<20)) //nolint:errcheck // the loop sees it
		}
	case "/early": // the rest of the body has no use
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
	default:
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the client ends it
	}
}

// raw sends the beginning of a request, and returns all that comes until the proxy ends the connection. With a set the client reads
// nothing of the response's body before the request has ended at its node.
func raw(t *testing.T, addr, head string, set *lb.Set) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()                                 //nolint:errcheck // the proxy has ended it
	conn.SetDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // it has one
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	if set != nil {
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		becomes(t, set, 0)
	}
	got, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%.20q: the proxy did not end the connection", head)
	}
	return string(got)
}

// TestClientStalls: a client that stops in its body gets 408, and a client that takes nothing of its response is cut. The nodes are not to blame.
func TestClientStalls(t *testing.T) {
	t.Parallel()
	const part = " HTTP/1.1\r\nHost: books\r\nContent-Length: 9\r\n"
	n, gone := serve(t, stalls), refuses(t)
	for _, row := range []struct{ addr, head, want string }{
		{n.addr(), "GET /endless HTTP/1.1\r\nHost: books\r\n\r\n", ""},
		{n.addr(), "POST /" + part + "\r\ntext", "408 "},
		{n.addr(), "POST /" + part + "Expect: 100-continue\r\n\r\n", "100 Continue\r\n\r\nHTTP/1.1 408 "},
		{n.addr(), "POST / HTTP/1.1\r\nHost: books\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext", "408 "},
		{n.addr(), "PUT /" + part + "\r\ntext", "408 "}, // which is kept for repeats
		{n.addr(), "POST /early" + part + "\r\ntext", "401 "},
		{gone, "POST /" + part + "\r\ntext", ""}, // 502, or no answer
	} {
		set, b := balance(t, lb.PeakEWMA, &lb.SetOptions{EjectAfter: 1, Panic: -1}, row.addr)
		most := 200 * time.Millisecond
		if row.want == "401 " {
			most = 2 * time.Second // in which the node answers
		}
		s := httptest.NewServer(newProxy(t, b, &httplb.ProxyOptions{ClientTimeout: most, Options: httplb.Options{TryTimeout: time.Minute}}))
		t.Cleanup(s.Close)
		var unread *lb.Set
		if row.want == "" && row.addr != gone {
			unread = set
		}
		got := raw(t, s.Listener.Addr().String(), row.head, unread)
		const goOn = "HTTP/1.1 100 Continue\r\n\r\n" // of the proxy's server and of the node: a client may get several, see RFC 9110, 15.2
		for strings.HasPrefix(got, goOn+goOn) {
			got = got[len(goOn):]
		}
		if row.want != "" && !strings.HasPrefix(got, "HTTP/1.1 "+row.want) {
			t.Errorf("%.20q: %.50q", row.head, got)
		}
		becomes(t, set, 0)
		if is := set.Nodes(); is[0].Ejected && row.addr != gone {
			t.Errorf("%.20q: the node was ejected", row.head)
		}
	}
}

// TestClientStalls_http2: the same in a stream of HTTP/2, whose connection goes on.
func TestClientStalls_http2(t *testing.T) {
	t.Parallel()
	n := serve(t, stalls)
	set, b := balance(t, lb.PeakEWMA, &lb.SetOptions{EjectAfter: 1, Panic: -1}, n.addr())
	url, client := front(t, newProxy(t, b, &httplb.ProxyOptions{ClientTimeout: time.Second, Options: httplb.Options{TryTimeout: time.Minute}}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, method := range []string{"POST", "PUT"} {
		in, out := io.Pipe()
		r, err := http.NewRequestWithContext(ctx, method, url, in)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = 9
		go io.WriteString(out, "text") //nolint:errcheck // the test sees it
		if res, _ := ask(t, client, r); res.StatusCode != 408 {
			t.Errorf("%s: status %d", method, res.StatusCode)
		}
		out.Close() //nolint:errcheck // a pipe
	}
	res, err := client.Do(request(t, "GET", url+"/endless", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nobody reads it
	becomes(t, set, 0)
	if res, _ := ask(t, client, request(t, "GET", url, "")); res.StatusCode != 200 {
		t.Errorf("after that: %s", res.Status)
	}
	if is := set.Nodes(); is[0].Ejected {
		t.Error("the node was ejected")
	}
}

// pauses is a node whose events are pause apart. Then the node echoes the body. At /thinks the pause is before the response.
func pauses(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" {
		switches(w, r)
		return
	}
	if r.URL.Path == "/thinks" {
		all, err := io.ReadAll(r.Body)
		<-time.After(pause)
		if err == nil && r.Context().Err() == nil {
			w.Write(all) //nolint:errcheck // the client sees it
		}
		return
	}
	control := http.NewResponseController(w)
	control.EnableFullDuplex() //nolint:errcheck // it can
	w.Header().Set("Content-Type", "text/event-stream")
	for range 2 {
		io.WriteString(w, "event\n") //nolint:errcheck // the client sees it
		control.Flush()              //nolint:errcheck // as above
		<-time.After(pause)
	}
	io.Copy(w, r.Body) //nolint:errcheck // as above
}

const pause = 1500 * time.Millisecond

// TestPauses: a node that thinks, a response, a stream in both directions and a websocket may pause for longer than ClientTimeout.
func TestPauses(t *testing.T) {
	t.Parallel()
	n := serve(t, pauses)
	_, b := balance(t, lb.RoundRobin, nil, n.addr())
	p := newProxy(t, b, &httplb.ProxyOptions{ClientTimeout: time.Second})
	url, client := front(t, p)
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	t.Run("HTTP/1.1", func(t *testing.T) {
		t.Parallel()
		if _, got := ask(t, s.Client(), request(t, "GET", s.URL, "")); got != "event\nevent\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		in, out := io.Pipe()
		r := request(t, "POST", url, "")
		r.Body = in
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(pause)         // the client sends nothing
		io.WriteString(out, "text") //nolint:errcheck // the test sees it
		out.Close()                 //nolint:errcheck // a pipe
		if got := text(t, res); res.ProtoMajor != 2 || got != "event\nevent\ntext" {
			t.Errorf("%s: %q", res.Proto, got)
		}
	})
	for _, method := range []string{"POST", "PUT"} {
		for to, by := range map[string]*http.Client{url: client, s.URL: s.Client()} {
			t.Run(method+" "+to, func(t *testing.T) {
				t.Parallel()
				if res, got := ask(t, by, request(t, method, to+"/thinks", "text")); res.StatusCode != 200 || got != "text" {
					t.Errorf("%s: %s, %q", res.Proto, res.Status, got)
				}
			})
		}
	}
	t.Run("websocket", func(t *testing.T) {
		t.Parallel()
		websocketPauses(t, s)
	})
}

func websocketPauses(t *testing.T, s *httptest.Server) {
	r := request(t, "GET", s.URL, "")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	res, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it has ended
	conn, ok := res.Body.(io.ReadWriter)
	if !ok {
		t.Fatal(res.Status)
	}
	<-time.After(pause) // neither side sends anything
	got := make([]byte, 4)
	if _, err := io.WriteString(conn, "text"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "text" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestServerTimeouts: a shorter time-out of the server stands, and a connection is of use again after the request.
func TestServerTimeouts(t *testing.T) {
	t.Parallel()
	n := serve(t, stalls)
	_, b := balance(t, lb.RoundRobin, nil, n.addr())
	for head, want := range map[string]string{
		"GET /endless HTTP/1.1\r\nHost: books\r\n\r\n":                         "HTTP/1.1 200 ",
		"POST / HTTP/1.1\r\nHost: books\r\nContent-Length: 9\r\n\r\ntext":      "HTTP/1.1 408 ",
		"POST /early HTTP/1.1\r\nHost: books\r\nContent-Length: 9\r\n\r\ntext": "HTTP/1.1 401 ",
	} {
		most := 200 * time.Millisecond
		if strings.HasSuffix(want, "401 ") {
			most = 2 * time.Second // in which the node answers
		}
		s := httptest.NewUnstartedServer(newProxy(t, b, nil))
		s.Config.ReadTimeout, s.Config.WriteTimeout, s.Config.IdleTimeout = most, 2*most, time.Minute
		s.Start()
		t.Cleanup(s.Close)
		if got := raw(t, s.Listener.Addr().String(), head, nil); !strings.HasPrefix(got, want) {
			t.Errorf("%.20q: %.50q", head, got)
		}
	}
}
