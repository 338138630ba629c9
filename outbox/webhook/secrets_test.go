package webhook_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/webhook"
)

// failing is a transport that returns an error.
type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// TestNoSecretsInErrors: a relay keeps and prints the error of a publisher. The password, the parameters and the path of the URL may be secrets,
// and servers repeat them.
func TestNoSecretsInErrors(t *testing.T) {
	away := httptest.NewServer(nil)
	away.Close()
	for name, c := range map[string]struct {
		answer http.HandlerFunc // nil: the server is away
		fails  error            // of the transport
		class  error
		says   string
	}{
		"a server that is away": {class: outbox.ErrBlocked, says: "connection refused"},
		"a page that repeats the path": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "no "+r.URL.Path+" is here", 404)
		}, class: outbox.ErrBlocked, says: "404: \"no *** is here"},
		"a page that repeats a part of the path": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "hook "+path.Base(r.URL.Path)+" is off", 404)
		}, class: outbox.ErrBlocked, says: "hook *** is off"},
		"a page that repeats the path as JSON": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "no "+strings.ReplaceAll(r.URL.Path, "/", `\/`), 404)
		}, class: outbox.ErrBlocked, says: "no"},
		"a page that repeats the URL": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "no "+r.RequestURI, 422)
		}, class: outbox.ErrRefused, says: "422: \"no ***"},
		"a page that repeats a value": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "bad token "+r.URL.Query().Get("token"), 401)
		}, class: outbox.ErrBlocked, says: "bad token ***"},
		"a page that repeats the password": {answer: func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			http.Error(w, user+" may not use "+password, 403)
		}, class: outbox.ErrBlocked, says: "*** may not use ***"},
		"a value at the end of what is shown": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, strings.Repeat("x", 195)+r.URL.Query().Get("token"), 500)
		}, class: outbox.ErrBlocked, says: "x***"},
		"a redirect that is no URL": {answer: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://ho st"+r.RequestURI)
			w.WriteHeader(307)
		}, says: "Location"},
		"a transport that asks elsewhere": {
			fails: fmt.Errorf("get a token: %w", &url.Error{Op: "Post", URL: "https://elsewhere.example/?secret=hidden", Err: errors.New("no answer")}), says: "no answer"},
	} {
		server := away
		if c.answer != nil {
			server = httptest.NewServer(c.answer)
			defer server.Close()
		}
		opts := webhook.Options{}
		if c.fails != nil {
			opts.Client = &http.Client{Transport: failing{c.fails}}
		}
		p, err := webhook.New(strings.Replace(server.URL, "//", "//hidden0:hidden1@", 1)+"/services/hidden2?v=1&token=hidden3%2F%2Bhidden4", opts)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Publish(t.Context(), outbox.Message{ID: "1", Topic: "x"})
		if !errors.Is(err, c.class) && c.class != nil || err != nil && strings.Contains(err.Error(), "hid") || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
