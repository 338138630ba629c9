package testservers

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Proxy is a TCP proxy in front of a server, to have trouble on the network.
type Proxy struct {
	Addr string // where clients connect to

	t     testing.TB
	proxy *toxiproxy.Proxy
}

// NewProxy starts a proxy in front of upstream, "host:port", for one test.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	for attempt := 1; ; attempt++ {
		ports, err := freePorts(1)
		if err != nil {
			t.Fatal(err)
		}
		listen := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
		proxy := toxiproxy.NewProxy(server, t.Name(), listen, upstream)
		err = proxy.Start()
		if err != nil && attempt < 3 {
			continue // somebody took the port meanwhile
		}
		if err != nil {
			t.Fatalf("start proxy to %s: %v", upstream, err)
		}
		t.Cleanup(proxy.Stop)
		return &Proxy{Addr: listen, t: t, proxy: proxy}
	}
}

// Freeze makes the network a black hole: bytes sent from now on are lost in
// both directions, connections stay open, and new ones open but hang.
func (p *Proxy) Freeze() {
	p.t.Helper()
	p.add("upstream", "timeout", `{"timeout":0}`)
	p.add("downstream", "timeout", `{"timeout":0}`)
}

// FreezeReplies loses what the server says only: requests are executed, and
// their outcome is unknown.
func (p *Proxy) FreezeReplies() { p.t.Helper(); p.add("downstream", "timeout", `{"timeout":0}`) }

// Delay holds all bytes back for d, in each direction.
func (p *Proxy) Delay(d time.Duration) {
	p.t.Helper()
	p.add("upstream", "latency", fmt.Sprintf(`{"latency":%d}`, d.Milliseconds()))
	p.add("downstream", "latency", fmt.Sprintf(`{"latency":%d}`, d.Milliseconds()))
}

// Thaw ends Freeze, FreezeReplies and Delay. Connections that were frozen
// close; bytes that were delayed are delivered now.
func (p *Proxy) Thaw() { p.proxy.Toxics.ResetToxics(context.Background()) }

// Cut closes all connections and refuses new ones.
func (p *Proxy) Cut() { p.proxy.Stop() }

// Heal ends all trouble.
func (p *Proxy) Heal() {
	p.t.Helper()
	p.Thaw()
	if err := p.proxy.Start(); err != nil && err != toxiproxy.ErrProxyAlreadyStarted {
		p.t.Fatalf("heal proxy: %v", err)
	}
}

func (p *Proxy) add(stream, kind, attributes string) {
	p.t.Helper()
	toxic := fmt.Sprintf(`{"type":%q,"stream":%q,"attributes":%s}`, kind, stream, attributes)
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		p.t.Fatalf("%s %s: %v", kind, stream, err)
	}
}

// Together makes trouble with all of some proxies.
func Together(proxies []*Proxy) (freeze, freezeReplies, cut, heal func()) {
	each := func(do func(*Proxy)) func() {
		return func() {
			for _, proxy := range proxies {
				do(proxy)
			}
		}
	}
	return each((*Proxy).Freeze), each((*Proxy).FreezeReplies), each((*Proxy).Cut), each((*Proxy).Heal)
}
