package open

import (
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestOpen_NATS_TLS: TLS works as for the other stores; the scheme has no form of its own for TLS.
func TestOpen_NATS_TLS(t *testing.T) {
	t.Parallel()
	ca, other := testservers.NewCA(t), testservers.NewCA(t)
	plain, secure, strict := testservers.SharedNATS(t), testservers.NATSTLS(t, ca, false), testservers.NATSTLS(t, ca, true)
	mine, stranger := ca.Issue("client"), other.Issue("client")
	shows := func(c testservers.Certificate) string { return "&tls-cert=" + c.CertFile + "&tls-key=" + c.KeyFile }
	opens(t, "nats://"+secure.Addr+"?tls=on&tls-ca="+ca.File)
	opens(t, "nats://"+strict.Addr+"?tls=on&tls-ca="+ca.File+shows(mine))
	refuses(t, "nats://"+secure.Addr+"?tls=on&tls-ca="+other.File, engine.ErrUnavailable, "signed by unknown authority")
	refuses(t, "nats://"+secure.Addr+"?tls=on&tls-ca="+ca.File+"&tls-server-name=example.com", engine.ErrUnavailable, "is valid for localhost, not example.com")
	refuses(t, "nats://"+strict.Addr+"?tls=on&tls-ca="+ca.File, engine.ErrUnavailable, "connect to nats")
	refuses(t, "nats://"+strict.Addr+"?tls=on&tls-ca="+ca.File+shows(stranger), engine.ErrUnavailable, "connect to nats")
	refuses(t, "nats://"+plain.Addr+"?tls=on&tls-ca="+ca.File, engine.ErrUnavailable, "secure connection not available")
	refuses(t, "nats://"+secure.Addr, engine.ErrUnavailable, "connect to nats")
}

// TestOpen_NATS_token: a user without a password is a token.
func TestOpen_NATS_token(t *testing.T) {
	t.Parallel()
	addr := testservers.NATSUser(t, "secret-token", "").Addr
	opens(t, "nats://secret-token@"+addr)
	refuses(t, "nats://other-token@"+addr, engine.ErrUnavailable, "Authorization Violation")
	refuses(t, "nats://"+addr, engine.ErrUnavailable, "Authorization Violation")
}
