package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// said returns what do prints for the operator. Nothing else may print meanwhile.
func said(t *testing.T, do func()) string {
	t.Helper()
	var text bytes.Buffer
	was := stderr
	stderr = &voice{to: &text}
	defer func() { stderr = was }()
	do()
	stderr.flush(patience)
	return text.String()
}

// TestProxy_tells_what_matters: probes of many ports, and requests of many paths, do not hide the errors of other members.
func TestProxy_tells_what_matters(t *testing.T) {
	s := &proxyService{}
	stderr := said(t, func() {
		for i := range 2 * mostLogs {
			fmt.Fprintf(&s.front, "http: TLS handshake error from 192.0.2.1:%d: EOF\n", 40_000+i)
			s.reported(httptest.NewRequest("GET", fmt.Sprint("/", i), nil), fmt.Errorf(`send a request to node "10.0.0.7:80", try 1: read tcp 10.0.0.1:%d->10.0.0.7:80: broken`, i))
		}
		s.reported(httptest.NewRequest("GET", "/", nil), errors.New(`send a request to node "10.0.0.8:80", try 1: broken`))
		fmt.Fprint(&s.front, "http: TLS handshake error from 192.0.2.1:50000: tls: unknown certificate\n")
		s.errors.rest()
		s.front.rest()
	})
	for _, want := range []string{"from 192.0.2.1:40000: EOF", `"10.0.0.7:80"`, `"10.0.0.8:80"`, "unknown certificate", "9 further errors\n"} {
		if strings.Count(stderr, want) != 1+strings.Count(want, "further") {
			t.Errorf("standard error is %q, want %q", stderr, want)
		}
	}
}

// TestErrorLog_bounds: few errors of a while are printed, whatever their reasons, and more in the next while.
func TestErrorLog_bounds(t *testing.T) {
	var l errorLog
	now, n := time.Now(), 0
	for i := range 100 {
		if l.tells(fmt.Sprint(i), now) {
			n++
		}
	}
	if n != mostLogs || !l.tells("other", now.Add(logWhile)) {
		t.Errorf("%d errors of a while are printed, want %d", n, mostLogs)
	}
}
