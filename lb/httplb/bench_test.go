package httplb_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/pawl-go/pawl/lb"
	"github.com/pawl-go/pawl/lb/httplb"
)

// BenchmarkProxy is a request through a proxy, beside a bare httputil.ReverseProxy with the same pool of connections.
func BenchmarkProxy(b *testing.B) {
	back := serve(b, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("text")) }) //nolint:errcheck // the client sees it
	base := &http.Transport{MaxIdleConnsPerHost: 256}
	b.Cleanup(base.CloseIdleConnections)
	bare := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: back.addr()})
	bare.Transport = base
	_, balancer := balance(b, lb.PowerOfTwo, nil, back.addr())
	for _, row := range []struct {
		name string
		h    http.Handler
	}{{"bare", bare}, {"httplb", newProxy(b, balancer, &httplb.ProxyOptions{Options: httplb.Options{Base: base}})}} {
		b.Run(row.name, func(b *testing.B) {
			front := httptest.NewServer(row.h)
			defer front.Close()
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
			defer client.CloseIdleConnections()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					res, err := client.Do(request(b, "GET", front.URL, ""))
					if err != nil {
						b.Error(err)
						return
					}
					res.Body.Close() //nolint:errcheck // four bytes
				}
			})
		})
	}
}
