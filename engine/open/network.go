package open

import (
	"net"
	"net/url"
	"strconv"
	"strings"
)

// addresses returns the hosts of a URL, each with its port. The errors quote neither: without a host, a user and
// a password stand there.
func addresses(u *url.URL, port string) ([]string, error) {
	if u.Opaque != "" || u.Host == "" {
		return nil, wrong("the host is missing")
	}
	var addrs []string
	for host := range strings.SplitSeq(u.Host, ",") {
		one := url.URL{Host: host}
		name, number := one.Hostname(), one.Port()
		if number == "" {
			number = port
		}
		n, err := strconv.Atoi(number)
		switch {
		case name == "":
			return nil, wrong("a host is missing")
		case strings.Contains(name, ":") && !strings.HasPrefix(host, "["):
			return nil, wrong("a host is wrong: a port is a number, and IPv6 addresses stand in []")
		case err != nil || n < 1 || n > 65535:
			return nil, wrong("a port is not a number from 1 to 65535")
		}
		addrs = append(addrs, net.JoinHostPort(name, number))
	}
	return addrs, nil
}
