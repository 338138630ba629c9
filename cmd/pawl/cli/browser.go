package cli

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// forPrograms refuses what a web page of another origin makes a browser send. A browser says so in the request, and a program says nothing. A GET
// counts as a POST, because a GET of IDs uses them up.
func forPrograms(next http.Handler) http.Handler {
	var pages http.CrossOriginProtection
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		changing := r.WithContext(r.Context())
		changing.Method = http.MethodPost
		if err := pages.Check(changing); err != nil {
			answer(w, http.StatusForbidden, fmt.Sprintf("this service is for programs, and no web page may use it: %v", err))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// forThisMachine refuses requests for another host than this machine. The name of a web page may lead to this machine, and then the
// page has the origin of the service. But the request still has that name.
func forThisMachine(listen string, next http.Handler) http.Handler {
	own, _, _ := net.SplitHostPort(listen) //nolint:errcheck // checkListen has read it
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		if !net.ParseIP(host).IsLoopback() && !strings.EqualFold(host, "localhost") && !strings.EqualFold(host, own) {
			answer(w, http.StatusForbidden, fmt.Sprintf("the request is for the host %.80q: without certificates localhost, a loopback address and the host of --listen are allowed", host))
			return
		}
		next.ServeHTTP(w, r)
	})
}
