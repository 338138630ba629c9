package httplb_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/pawl-go/pawl/lb/httplb"
)

var trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}

// TestClientAddr: a client cannot choose its address. The naive rule, the first word of the header, believes the client.
func TestClientAddr(t *testing.T) {
	fooled := 0
	for _, row := range []struct {
		peer, want string
		header     []string
	}{
		{peer: "192.0.2.1:99", want: "192.0.2.1"},
		{peer: "192.0.2.1:99", header: []string{"1.1.1.1"}, want: "192.0.2.1"},
		{peer: "10.0.0.1:99", want: "10.0.0.1"},
		{peer: "10.0.0.1:99", header: []string{"192.0.2.1"}, want: "192.0.2.1"},
		{peer: "10.0.0.1:99", header: []string{"1.1.1.1, 192.0.2.1"}, want: "192.0.2.1"},
		{peer: "10.0.0.1:99", header: []string{"1.1.1.1", "192.0.2.1 ,10.9.9.9"}, want: "192.0.2.1"},
		{peer: "10.0.0.1:99", header: []string{"1.1.1.1, 192.0.2.1", "10.9.9.9"}, want: "192.0.2.1"},
		{peer: "10.0.0.1:99", header: []string{"10.1.1.1, 10.2.2.2"}, want: "10.1.1.1"},
		{peer: "10.0.0.1:99", header: []string{"1.1.1.1, unknown, 10.9.9.9"}, want: "10.9.9.9"},
		{peer: "10.0.0.1:99", header: []string{""}, want: "10.0.0.1"},
		{peer: "10.0.0.1:99", header: []string{"192.0.2.1:4711"}, want: "192.0.2.1"},
		{peer: "[fd00::1]:99", header: []string{"[2001:db8::1]:4711"}, want: "2001:db8::1"},
		{peer: "[fd00::1]:99", header: []string{"[2001:db8::1]"}, want: "2001:db8::1"},
		{peer: "[::ffff:10.0.0.1]:99", header: []string{"::ffff:192.0.2.1"}, want: "192.0.2.1"},
		{peer: "[fd00::1%eth0]:99", header: []string{"192.0.2.1"}, want: "192.0.2.1"},
		{peer: "@", header: []string{"192.0.2.1"}, want: "invalid IP"},
	} {
		r := &http.Request{RemoteAddr: row.peer, Header: http.Header{"X-Forwarded-For": row.header}}
		if got := httplb.ClientAddr(r, trusted).String(); got != row.want {
			t.Errorf("%+v: %s", row, got)
		}
		if len(row.header) > 0 && row.header[0][:min(7, len(row.header[0]))] == "1.1.1.1" {
			fooled++
		}
	}
	if fooled < 3 {
		t.Errorf("only %d rows fool the naive rule", fooled)
	}
}

// TestClientKey: the addresses of one client of IPv6 have one key, and other clients have others.
func TestClientKey(t *testing.T) {
	key := httplb.ClientKey(nil)
	of := func(peer string) string { return key(&http.Request{RemoteAddr: peer}) }
	if of("[2001:db8::1]:1") != of("[2001:db8::ffff:2]:2") || of("[2001:db8::1]:1") == of("[2001:db8:0:1::1]:1") {
		t.Error("the first 64 bits do not count alone")
	}
	if of("192.0.2.1:1") != of("192.0.2.1:2") || of("192.0.2.1:1") == of("192.0.2.2:1") {
		t.Error("the port counts, or the address does not")
	}
}

// FuzzClientAddr: whatever a client sends over an untrusted connection, its address is that of the connection.
func FuzzClientAddr(f *testing.F) {
	f.Add("1.1.1.1, 2.2.2.2")
	f.Add(",,[,]:0,%")
	f.Fuzz(func(t *testing.T, header string) {
		own := &http.Request{RemoteAddr: "192.0.2.1:9", Header: http.Header{"X-Forwarded-For": {header}}}
		if got := httplb.ClientAddr(own, trusted).String(); got != "192.0.2.1" {
			t.Errorf("%q: %s", header, got)
		}
		passed := &http.Request{RemoteAddr: "10.0.0.1:9", Header: http.Header{"X-Forwarded-For": {header + ", 192.0.2.1"}}}
		if got := httplb.ClientAddr(passed, trusted).String(); got != "192.0.2.1" {
			t.Errorf("%q: %s", header, got)
		}
	})
}
