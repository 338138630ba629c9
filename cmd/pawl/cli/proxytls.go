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
type upstream struct{ scheme, ca, name string }

// open returns the scheme of requests, and the way to the members.
func (u upstream) open() (scheme string, base *http.Transport, err error) {
	base = httplb.NewBase()
	base.DisableCompression = true
	switch {
	case u.scheme != "http" && u.scheme != "https" && u.scheme != "h2c":
		return "", nil, usageError("--upstream is %q: http, https and h2c are allowed", u.scheme)
	case u.scheme != "https" && u.ca+u.name != "":
		return "", nil, usageError("--upstream-ca and --upstream-name are for --upstream https")
	case u.scheme == "http":
		return "http", base, nil
	case u.scheme == "h2c":
		base.Protocols = new(http.Protocols)
		base.Protocols.SetUnencryptedHTTP2(true)
		return "http", base, nil
	}
	base.TLSClientConfig = &tls.Config{ServerName: u.name}
	if u.ca == "" {
		return "https", base, nil
	}
	text, err := os.ReadFile(u.ca)
	if err != nil {
		return "", nil, usageError("--upstream-ca: %w", err)
	}
	base.TLSClientConfig.RootCAs = x509.NewCertPool()
	if !base.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
		return "", nil, usageError("--upstream-ca: %s has no certificate in PEM", u.ca)
	}
	return "https", base, nil
}

// front is the server for clients.
func (p *proxyCommand) front() (*http.Server, error) {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		Protocols:         new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	switch {
	case p.cert == "" && p.key == "":
		server.Protocols.SetUnencryptedHTTP2(true)
		return server, nil
	case p.cert == "" || p.key == "":
		return nil, usageError("--tls-cert and --tls-key belong together: one of them is missing")
	}
	server.Protocols.SetHTTP2(true)
	c := &certificate{cert: p.cert, key: p.key}
	if err := c.load(); err != nil {
		return nil, usageError("--tls-cert and --tls-key: %w", err)
	}
	server.TLSConfig = &tls.Config{GetCertificate: c.get}
	return server, nil
}

// certificate is that of its files, which may be renewed while the proxy runs.
type certificate struct {
	cert, key string

	mu     sync.Mutex
	is     *tls.Certificate
	of     [2]time.Time // when the files were changed that is was read from
	looked time.Time
}

// lookEvery is how often the files are looked at.
const lookEvery = time.Second

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
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookEvery {
		return c.is, nil
	}
	c.looked = time.Now()
	at, err := c.changed()
	if err == nil && at == c.of {
		return c.is, nil
	}
	if err == nil {
		err = c.load()
	}
	if err != nil {
		complain(fmt.Errorf("--tls-cert and --tls-key: %w; going on with the last certificate", err))
		c.looked = time.Now().Add(time.Minute) // once a minute is enough
	}
	return c.is, nil
}
