package testservers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority of one test.
type CA struct {
	File string // its certificate in PEM, which a client trusts

	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Certificate is the certificate of a server or a client, in PEM.
type Certificate struct{ CertFile, KeyFile string }

// NewCA makes an authority. The files are in a folder that servers of another user may enter, which
// the folder of t.TempDir is not. Only this user may read the keys.
func NewCA(t testing.TB) *CA {
	t.Helper()
	dir, err := os.MkdirTemp("", "pawl-ca-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // a temporary folder
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ca := &CA{File: filepath.Join(dir, "ca.pem"), t: t, dir: dir, key: newKey(t)}
	template := certificate("pawl test CA")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	ca.cert = ca.sign(template, template, ca.key, ca.File)
	return ca
}

// Issue makes a certificate for servers at 127.0.0.1 and localhost, which also proves that a client
// has this name.
func (ca *CA) Issue(name string) Certificate {
	ca.t.Helper()
	key := newKey(ca.t)
	c := Certificate{filepath.Join(ca.dir, name+".pem"), filepath.Join(ca.dir, name+".key")}
	template := certificate(name)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses, template.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}
	ca.sign(template, ca.cert, key, c.CertFile)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		ca.t.Fatal(err)
	}
	writePEM(ca.t, c.KeyFile, "PRIVATE KEY", der, 0o600)
	return c
}

// Client returns the settings of a client that trusts this authority and shows
// these certificates, if any.
func (ca *CA) Client(certs ...Certificate) *tls.Config {
	ca.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	for _, c := range certs {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			ca.t.Fatal(err)
		}
		config.Certificates = append(config.Certificates, pair)
	}
	return config
}

func (ca *CA) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, file string) *x509.Certificate {
	ca.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	writePEM(ca.t, file, "CERTIFICATE", der, 0o644)
	return cert
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func certificate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func writePEM(t testing.TB, file, kind string, der []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		t.Fatal(err)
	}
}
