package open_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

// TestTLS: a client takes a lock, waits for it and hands it over while everything is encrypted,
// messages too.
func TestTLS(t *testing.T) {
	ca := testservers.NewCA(t)
	mine := ca.Issue("client")
	params := "?tls-ca=" + ca.File + "&tls-cert=" + mine.CertFile + "&tls-key=" + mine.KeyFile
	for _, url := range []string{
		"rediss://" + testservers.RedisTLS(t, ca, "--tls-auth-clients", "yes").Addr + params,
		"etcds://" + testservers.EtcdTLS(t, ca, "--client-cert-auth", "--trusted-ca-file", ca.File).Addr + params,
	} {
		a, b := client(t, url), client(t, url)
		first := hold(t, a, "secret")
		next := lockSoon(t, b.Mutex("secret"))
		queued(t, url, "secret", 2)
		ended := time.Now()
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		after(t, first, ended, next)
	}
}
