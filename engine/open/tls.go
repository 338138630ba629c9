package open

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"time"
)

// tlsParams are the parameters of every scheme that speaks TLS. Schemes whose name does not say so
// take the parameter tls as well: [optionalTLS].
var (
	tlsParams   = []string{"tls-ca", "tls-cert", "tls-key", "tls-server-name"}
	optionalTLS = append([]string{"tls"}, tlsParams...)
)

// tlsConfig returns the settings of a connection to the store, nil for a connection
// without TLS. All settings check the server's certificate.
func tlsConfig(u *url.URL) (*tls.Config, error) {
	params := u.Query()
	on, err := onOff(u, "tls")
	if err != nil {
		return nil, err
	}
	if !on && u.Scheme != "rediss" && u.Scheme != "etcds" {
		for _, key := range tlsParams {
			if params.Has(key) {
				return nil, wrong("parameter %q is for TLS, which is off without tls=on", key)
			}
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: params.Get("tls-server-name")}
	if ca := params.Get("tls-ca"); ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, wrong("tls-ca: %v", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, wrong("tls-ca: %s has no certificate in PEM", ca)
		}
	}
	cert, key := params.Get("tls-cert"), params.Get("tls-key")
	switch {
	case (cert == "") != (key == ""):
		return nil, wrong("tls-cert and tls-key belong together")
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, wrong("tls-cert and tls-key: %v", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// http2 is the first message of a client that speaks HTTP/2, as gRPC does. A server that speaks
// HTTP/2 too never hangs up before that message.
const http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// probe looks whether any of the servers takes a connection. If none does, it reports the reason:
// some clients only retry until their time is over. probe does not report success, and looks until
// ctx ends.
func probe(ctx context.Context, addrs []string, config *tls.Config, tell func(error)) {
	found := make(chan error, len(addrs))
	for _, addr := range addrs {
		go func() { found <- probeOne(ctx, addr, config) }()
	}
	var first error
	bad := 0
	for range addrs {
		if err := <-found; err != nil {
			bad++
			first = cmp.Or(first, err)
		}
	}
	if bad == len(addrs) && ctx.Err() == nil {
		tell(first)
	}
}

// probeOne returns nil when the server answers, or says nothing until ctx ends. With TLS, only an
// answer after the handshake shows that the server takes the client's certificate.
func probeOne(ctx context.Context, addr string, config *tls.Config) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })() //nolint:errcheck // the connection is closed then
	var talk io.Reader = conn
	if config == nil {
		_, err = io.WriteString(conn, http2)
	} else {
		config = config.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(addr)
		}
		secure := tls.Client(conn, config)
		if err = secure.HandshakeContext(ctx); err == io.EOF || errors.Is(err, syscall.ECONNRESET) {
			err = errNoTLS
		}
		talk = secure
	}
	if err != nil {
		return err
	}
	const alert = 0x15 // the first byte of an answer of TLS to a client that does not speak TLS
	word := make([]byte, 1)
	switch n, err := talk.Read(word); {
	case ctx.Err() != nil || n > 0 && (config != nil || word[0] != alert):
		return nil
	case config == nil:
		return errOnlyTLS
	default:
		return err
	}
}

var (
	errNoTLS   = errors.New("no answer to a TLS handshake: does the server speak TLS?")
	errOnlyTLS = errors.New("no answer without TLS: does the server speak TLS only?")
)
