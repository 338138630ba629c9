//go:build unix

package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/pawl-go/pawl/internal/testservers"
)

// echoes is the server's side of a connection that is upgraded.
func echoes(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	io.Copy(conn, buffered) //nolint:errcheck // until the other side ends
}

// websocket opens a connection through a proxy, with TLS if config is not nil.
func websocket(t *testing.T, url string, config *tls.Config) io.ReadWriteCloser {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	conn, ok := res.Body.(io.ReadWriteCloser)
	if !ok || res.StatusCode != 101 {
		t.Fatalf("%s", res.Status)
	}
	t.Cleanup(func() { conn.Close() })
	echo(t, conn, "hello")
	return conn
}

func echo(t *testing.T, conn io.ReadWriter, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("%q came back, %v", got, err)
	}
}

// backendTLS starts a server with TLS that is a member. With clients, the server demands a certificate of that authority, ends each
// connection after its response, and answers with the certificate's number.
func backendTLS(t *testing.T, store string, ca, clients *testservers.CA) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			echoes(w)
			return
		}
		if clients != nil {
			w.Header().Set("Connection", "close")
			fmt.Fprint(w, r.TLS.PeerCertificates[0].SerialNumber)
			return
		}
		fmt.Fprint(w, r.Proto, " ", r.Header.Get("X-Forwarded-Proto"))
	}))
	s.EnableHTTP2, s.TLS = true, &tls.Config{Certificates: ca.Client(ca.Issue("member")).Certificates}
	if clients != nil {
		s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, clients.Client().RootCAs
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of a proxy that does not trust this server
	s.StartTLS()
	t.Cleanup(s.Close)
	memberOf(t, store, "a", s.Listener)
}

// TestProxy_TLS: TLS with HTTP/2 and HTTP/1.1 on both sides, websockets too. A renewed certificate is used without a restart.
func TestProxy_TLS(t *testing.T) {
	t.Parallel()
	store, ca := sqliteStore(t), testservers.NewCA(t)
	cert := ca.Issue("proxy")
	backendTLS(t, store, ca, nil)
	flags := []string{"--tls-cert", cert.CertFile, "--tls-key", cert.KeyFile, "--upstream", "https", "--drain", "0"}
	p := proxying(t, store, append(flags, "--upstream-ca", ca.File)...)
	serial := func(h2 bool) string {
		transport := &http.Transport{TLSClientConfig: ca.Client(), ForceAttemptHTTP2: h2}
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if text, err := io.ReadAll(res.Body); err != nil || string(text) != "HTTP/2.0 https" || res.ProtoMajor == 2 != h2 {
			t.Errorf("%s: %q, %v", res.Proto, text, err)
		}
		return res.TLS.PeerCertificates[0].SerialNumber.String()
	}
	first := serial(true)
	serial(false)
	websocket(t, p.url, ca.Client()).Close()
	eventually(t, "the websocket counts as answered", func() bool { return p.figure("pawl_proxy_requests_total", `,status="1xx"`) == 1 })
	if n := p.figure("pawl_proxy_requests_total", `,status="none"`); n != 0 {
		t.Errorf("%d requests without a response", n)
	}
	if err := os.WriteFile(cert.CertFile, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says so", func() bool {
		return serial(true) == first && strings.Contains(p.errors(), "going on with the last certificate")
	})
	p.ends(0)

	ca.Issue("proxy")
	p = proxying(t, store, append(flags, "--upstream-ca", ca.File)...)
	first = serial(true)
	ca.Issue("proxy")
	eventually(t, "the new certificate is used", func() bool { return serial(true) != first })
	p.ends(0)
}

// TestProxy_trusts_no_other_authority: a member gets no request unless the authority and the name of its certificate are right.
func TestProxy_trusts_no_other_authority(t *testing.T) {
	t.Parallel()
	store, ca := sqliteStore(t), testservers.NewCA(t)
	backendTLS(t, store, ca, nil)
	for _, flags := range [][]string{{"--upstream-ca", testservers.NewCA(t).File}, {"--upstream-ca", ca.File, "--upstream-name", "other.org"}, {}} {
		p := proxying(t, store, append(flags, "--upstream", "https", "--drain", "0")...)
		if is := status(t, nil, p.url); is != 502 {
			t.Errorf("%v: status %d", flags, is)
		}
		p.ends(0)
		complaint(t, p.errors(), "tls: failed to verify certificate")
	}
	p := proxying(t, store, "--upstream", "https", "--upstream-ca", ca.File, "--upstream-name", "localhost", "--drain", "0")
	get(t, 200, p.url)
	p.ends(0)
}

// TestProxy_client_certificates: members and the proxy both demand certificates. The proxy shows members its own, also after a renewal,
// and serves no client without a certificate of its authority.
func TestProxy_client_certificates(t *testing.T) {
	t.Parallel()
	store, ca, inside, outside := sqliteStore(t), testservers.NewCA(t), testservers.NewCA(t), testservers.NewCA(t)
	backendTLS(t, store, ca, inside)
	front, shown := ca.Issue("proxy"), inside.Issue("shown")
	flags := []string{"--upstream", "https", "--upstream-ca", ca.File, "--drain", "0"}
	wrong := ca.Issue("wrong")
	for _, more := range [][]string{{}, {"--upstream-cert", wrong.CertFile, "--upstream-key", wrong.KeyFile}} {
		p := proxying(t, store, append(more, flags...)...)
		if is := status(t, nil, p.url); is != 502 {
			t.Errorf("%v: status %d", more, is)
		}
		p.ends(0)
		complaint(t, p.errors(), `send a request to node "a"`)
	}
	p := proxying(t, store, append(flags, "--upstream-cert", shown.CertFile, "--upstream-key", shown.KeyFile,
		"--tls-cert", front.CertFile, "--tls-key", front.KeyFile, "--tls-client-ca", outside.File)...)
	as := func(config *tls.Config) (string, error) {
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(p.url)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return string(text), err
	}
	client := ca.Client()
	client.Certificates = outside.Client(outside.Issue("client")).Certificates
	first, err := as(client)
	if err != nil || first == "" {
		t.Errorf("with a certificate: %q, %v", first, err)
	}
	websocket(t, p.url, client).Close()
	for _, config := range []*tls.Config{ca.Client(), ca.Client(wrong)} {
		if text, err := as(config); err == nil { // the error may be that of a connection which was reset
			t.Errorf("without a certificate of the authority: %q, %v", text, err)
		}
	}
	inside.Issue("shown")
	eventually(t, "the proxy shows the new certificate", func() bool { text, err := as(client); return err == nil && text != first })
	p.ends(0)
}

// TestProxy_h2c: HTTP/2 without TLS on both sides.
func TestProxy_h2c(t *testing.T) {
	t.Parallel()
	store, protocols := sqliteStore(t), new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }))
	s.Config.Protocols = protocols
	s.Start()
	t.Cleanup(s.Close)
	memberOf(t, store, "a", s.Listener)
	p := proxying(t, store, "--upstream", "h2c", "--drain", "0")
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: patience}).Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "HTTP/2.0" || res.ProtoMajor != 2 {
		t.Errorf("%s: %q, %v", res.Proto, text, err)
	}
	if text, _ := get(t, 200, p.url); text != "HTTP/2.0" { // a client of HTTP/1.1
		t.Errorf("got %q", text)
	}
	p.ends(0)
}

// TestProxy_gRPC: a call and a stream of gRPC, whose status is in a trailer.
func TestProxy_gRPC(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), grpchealth.NewServer()
	healthpb.RegisterHealthServer(server, state)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(listener) }) //nolint:errcheck // it was stopped
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	memberOf(t, store, "a", listener)
	p := proxying(t, store, "--upstream", "h2c", "--drain", "0")
	conn, err := grpc.NewClient(strings.TrimPrefix(p.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := healthpb.NewHealthClient(conn)
	if is, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || is.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("check: %v, %v", is, err)
	}
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); grpcstatus.Code(err) != grpccodes.NotFound {
		t.Errorf("check of no service: %v", err)
	}
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
		if is, err := stream.Recv(); err != nil || is.Status != want {
			t.Fatalf("watch: %v, %v", is, err)
		}
		state.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	}
	cancel()
	p.ends(0)
}
