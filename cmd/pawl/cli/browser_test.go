//go:build unix

package cli

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// asked is a request as a browser or a program sends it. The host is that of the URL, unless there is another.
type asked struct {
	method, path, host, origin, site string
}

// ask sends the request, and returns the answer.
func (s asked) ask(t *testing.T, at, body string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), s.method, strings.TrimSuffix(at, "/")+s.path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(r.URL.Host)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = strings.ReplaceAll(s.host, "PORT", port)
	for name, value := range map[string]string{"Origin": strings.ReplaceAll(s.origin, "PORT", port), "Sec-Fetch-Site": s.site} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	r.Header.Set("Content-Type", "text/plain") // which a page sends without asking first
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(all)
}

// TestTx_agent_browser: an agent without certificates executes nothing for a web page that a browser of this machine shows.
func TestTx_agent_browser(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	a.ca = nil
	for _, name := range agentNames {
		a.urls[name] = strings.Replace(a.urls[name], "https:", "http:", 1)
	}
	for _, name := range agentNames {
		want(t, 0, "memory:", "tx", "migrate", "--agent", "--db", a.files[name])
		a.start(name)
	}
	for what, s := range map[string]asked{
		"a page of another site":     {path: "/commit", origin: "https://evil.example", site: "cross-site"},
		"of an old browser":          {path: "/commit", origin: "https://evil.example"},
		"of a file":                  {path: "/commit", origin: "null", site: "cross-site"},
		"of another port":            {path: "/commit", origin: "http://127.0.0.1:8000", site: "same-site"},
		"of a name that is rebound":  {path: "/commit", origin: "http://evil.example:PORT", host: "evil.example:PORT"},
		"of one without the port":    {path: "/commit", host: "evil.example"},
		"that begins with localhost": {path: "/commit", host: "localhost.evil.example:PORT"},
		"a message of a page":        {path: "/", origin: "https://evil.example", site: "cross-site"},
		"a message of a rebound one": {path: "/", host: "127.0.0.1.evil.example:PORT"},
	} {
		s.method = http.MethodPost
		if status, text := s.ask(t, a.urls["bank"], a.transfer(1)); status != 403 || !strings.Contains(text, "web page") && !strings.Contains(text, "for the host") || a.balances() != [2]int{10, 10} {
			t.Errorf("%s: %d %s leaves %v", what, status, text, a.balances())
		}
	}
	for i, host := range []string{"", "localhost:PORT", "LOCALHOST", "127.0.0.2:9", "[::1]:PORT"} {
		s := asked{method: http.MethodPost, path: "/commit", host: host}
		if status, text := s.ask(t, a.urls["bank"], a.transfer(1)); status != 200 || a.balances() != [2]int{9 - i, 11 + i} {
			t.Errorf("%s: %d %s leaves %v", host, status, text, a.balances())
		}
	}
}

// TestID_serve_browser: a web page uses no IDs up. A user who types the URL gets an ID, and so does a program.
func TestID_serve_browser(t *testing.T) {
	t.Parallel()
	_, at := serve(t, sqliteStore(t), "--kind", "segment", "--name", "x")
	ready(t, at)
	before, _ := get(t, 200, at+"/id/x")
	for what, s := range map[string]asked{
		"an image of a page":   {path: "/id/x?n=10000", site: "cross-site"},
		"a page of this host":  {path: "/id/x?n=10000", site: "same-site"},
		"of an old browser":    {path: "/id/x?n=10000", origin: "https://evil.example"},
		"a check by that page": {path: "/readyz", site: "cross-site"},
	} {
		s.method = http.MethodGet
		if status, text := s.ask(t, at, ""); status != 403 {
			t.Errorf("%s: %d %.100s", what, status, text)
		}
	}
	after, _ := get(t, 200, at+"/id/x", "Sec-Fetch-Site", "none")
	if strings.TrimSpace(before) != "2" || strings.TrimSpace(after) != "3" { // 1 was for the check
		t.Errorf("%s comes after %s", after, before)
	}
}
