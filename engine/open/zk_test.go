package open

import (
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestOpen_ZooKeeper_TLS: TLS works as for the other stores; the scheme has no form of its own for
// TLS.
func TestOpen_ZooKeeper_TLS(t *testing.T) {
	t.Parallel()
	ca, other := testservers.NewCA(t), testservers.NewCA(t)
	plain, secure := testservers.ZooKeeperTLS(t, ca)
	mine, stranger := ca.Issue("client"), other.Issue("client")
	shows := func(c testservers.Certificate) string { return "&tls-cert=" + c.CertFile + "&tls-key=" + c.KeyFile }
	url := "zk://" + secure + "?tls=on&tls-ca="
	opens(t, url+ca.File+shows(mine))
	opens(t, "zk://"+plain.Addr)
	refuses(t, url+other.File+shows(mine), engine.ErrUnavailable, "signed by unknown authority")
	refuses(t, url+ca.File+"&tls-server-name=example.com"+shows(mine), engine.ErrUnavailable, "is valid for localhost, not example.com")
	refuses(t, url+ca.File, engine.ErrUnavailable, "connect to zookeeper")
	refuses(t, url+ca.File+shows(stranger), engine.ErrUnavailable, "connect to zookeeper")
	refuses(t, "zk://"+secure, engine.ErrUnavailable, "connect to zookeeper")
	refuses(t, "zk://"+plain.Addr+"?tls=on&tls-ca="+ca.File, engine.ErrUnavailable, "connect to zookeeper")
}
