package cli

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/pawl-go/pawl/lb/httplb"
)

// upstream is how members are reached.
type upstream struct{ scheme, ca, name, cert, key string }

// open returns the scheme of requests, and the way to the members.
func (u upstream) open() (scheme string, base *http.Transport, err error) {
	base = httplb.NewBase()
	base.DisableCompression = true
	switch {
	case u.scheme != "http" && u.scheme != "https" && u.scheme != "h2c":
		return "", nil, usageError("--upstream is %q: http, https and h2c are allowed", u.scheme)
	case u.scheme != "https" && u.ca+u.name+u.cert+u.key != "":
		return "", nil, usageError("--upstream-ca, --upstream-name, --upstream-cert and --upstream-key are for --upstream https")
	case u.scheme == "http":
		return "http", base, nil
	case u.scheme == "h2c":
		base.Protocols = new(http.Protocols)
		base.Protocols.SetUnencryptedHTTP2(true)
		return "http", base, nil
	}
	base.TLSClientConfig = &tls.Config{ServerName: u.name}
	if u.ca != "" {
		if base.TLSClientConfig.RootCAs, err = authorities("--upstream-ca", u.ca); err != nil {
			return "", nil, err
		}
	}
	c, err := newCertificate("--upstream-cert", u.cert, "--upstream-key", u.key)
	if err != nil {
		return "", nil, err
	}
	if c != nil {
		base.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.get(), nil }
	}
	return "https", base, nil
}

// authorities reads the file of a flag.
func authorities(flag, file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError("%s: %w", flag, err)
	}
	all := x509.NewCertPool()
	if !all.AppendCertsFromPEM(text) {
		return nil, usageError("%s: %s has no certificate in PEM", flag, file)
	}
	return all, nil
}

// front is the server for clients.
func (p *proxyCommand) front() (*http.Server, error) {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{WriteByteTimeout: p.way.ClientTimeout}, // of a connection; the proxy bounds streams
	}
	server.Protocols.SetHTTP1(true)
	c, err := newCertificate("--tls-cert", p.cert, "--tls-key", p.key)
	switch {
	case err != nil:
		return nil, err
	case c == nil && p.clientCA != "":
		return nil, usageError("--tls-client-ca is for --tls-cert and --tls-key: both are missing")
	case c == nil:
		server.Protocols.SetUnencryptedHTTP2(true)
		return server, nil
	}
	server.Protocols.SetHTTP2(true)
	server.TLSConfig = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(), nil }}
	if p.clientCA != "" {
		server.TLSConfig.ClientAuth = tls.RequireAndVerifyClientCert
		if server.TLSConfig.ClientCAs, err = authorities("--tls-client-ca", p.clientCA); err != nil {
			return nil, err
		}
	}
	return server, nil
}

// certificate is that of its files, which may be renewed while the proxy runs.
type certificate struct {
	cert, key string
	flags     string // those of the files

	mu     sync.Mutex
	is     *tls.Certificate
	of     [2]time.Time // when the files were changed that is was read from
	looked time.Time
}

// lookEvery is how often the files are looked at.
const lookEvery = time.Second

// newCertificate reads the files of two flags. newCertificate returns nil if neither is given.
func newCertificate(certFlag, cert, keyFlag, key string) (*certificate, error) {
	c := &certificate{cert: cert, key: key, flags: certFlag + " and " + keyFlag}
	switch {
	case cert == "" && key == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, usageError("%s belong together: one of them is missing", c.flags)
	}
	if err := c.load(); err != nil {
		return nil, usageError("%s: %w", c.flags, err)
	}
	return c, nil
}

// load reads the files. Of files that change meanwhile the next load reads the end.
func (c *certificate) load() error {
	of, err := c.changed()
	if err != nil {
		return err
	}
	is, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	c.is, c.of = &is, of
	return nil
}

func (c *certificate) changed() (at [2]time.Time, err error) {
	for i, name := range []string{c.cert, c.key} {
		info, err := os.Stat(name)
		if err != nil {
			return at, err
		}
		at[i] = info.ModTime()
	}
	return at, nil
}

// get returns the certificate for a connection. While the files cannot be read, the last certificate is used.
func (c *certificate) get() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookEvery {
		return c.is
	}
	c.looked = time.Now()
	at, err := c.changed()
	if err == nil && at == c.of {
		return c.is
	}
	if err == nil {
		err = c.load()
	}
	if err != nil {
		complain(fmt.Errorf("%s: %w; going on with the last certificate", c.flags, err))
		c.looked = time.Now().Add(time.Minute) // once a minute is enough
	}
	return c.is
}
