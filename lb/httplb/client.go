package httplb

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ClientAddr returns the address of the client that made the request. Trusted are the networks of the proxies that the
// operator runs or trusts. The zero Addr means that the request came by no IP, such as by a Unix socket.
//
// ClientAddr believes X-Forwarded-For from right to left, as far as the words come from trusted proxies. The first address that is no
// trusted proxy is the client. So a client that sends the header itself changes nothing. A part that is no address ends the walk at the proxy that
// has sent that part. The header Forwarded is not read.
func ClientAddr(r *http.Request, trusted []netip.Prefix) netip.Addr {
	client := netip.Addr{}
	hops(r, trusted, func(a netip.Addr) { client = a })
	return client
}

// hops yields the addresses from the peer of the connection to the client.
func hops(r *http.Request, trusted []netip.Prefix, yield func(netip.Addr)) {
	at, ok := parseHop(r.RemoteAddr)
	if !ok {
		return
	}
	yield(at)
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var part string
			comma := strings.LastIndexByte(rest, ',')
			if more = comma >= 0; more {
				rest, part = rest[:comma], rest[comma+1:]
			} else {
				part = rest
			}
			if !isTrusted(at, trusted) {
				return
			}
			if at, ok = parseHop(strings.Trim(part, " \t")); !ok {
				return
			}
			yield(at)
		}
	}
}

// parseHop reads an address with or without a port.
func parseHop(text string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.Unmap().WithZone(""), true
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a.Addr().Unmap().WithZone(""), true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		if a, err := netip.ParseAddr(inner[:len(inner)-1]); err == nil {
			return a.Unmap().WithZone(""), true
		}
	}
	return netip.Addr{}, false
}

func isTrusted(a netip.Addr, trusted []netip.Prefix) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// ClientKey returns a key for [lb.SourceHash]: the address of the client, see [ClientAddr]. Of an address of IPv6
// the first 64 bits count, because one client has many such addresses.
func ClientKey(trusted []netip.Prefix) func(*http.Request) string {
	return func(r *http.Request) string {
		a := ClientAddr(r, trusted)
		if a.Is6() {
			if net, err := a.Prefix(64); err == nil {
				return net.Addr().String()
			}
		}
		return a.String()
	}
}

// forwarded returns X-Forwarded-For as the node gets it: the addresses that are known, from the client to the
// peer of the connection.
func forwarded(r *http.Request, trusted []netip.Prefix) string {
	var known []string
	hops(r, trusted, func(a netip.Addr) { known = append(known, a.String()) })
	slices.Reverse(known)
	return strings.Join(known, ", ")
}

// fromProxy reports whether the peer of the connection is a trusted proxy.
func fromProxy(r *http.Request, trusted []netip.Prefix) bool {
	peer, ok := parseHop(r.RemoteAddr)
	return ok && isTrusted(peer, trusted)
}
