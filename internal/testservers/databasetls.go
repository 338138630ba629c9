package testservers

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// PostgresTLS starts a PostgreSQL that lets nobody in without TLS. The database template1 also
// needs a certificate of the client. The user app, if a test makes it, needs a password.
func PostgresTLS(t testing.TB, ca *CA) *Server {
	t.Helper()
	cert, k := ca.Issue("postgres"), postgresKind
	k.fill = func(k kind, path, dir string, ports []int) error {
		if err := fillPostgres(k, path, dir, ports); err != nil {
			return err
		}
		key, err := os.ReadFile(cert.KeyFile)
		if err != nil {
			return err
		}
		hers := filepath.Join(dir, "server.key") // PostgreSQL insists that its own user owns the key
		err = os.WriteFile(hers, key, 0o600)
		if err == nil && os.Getuid() == 0 {
			err = os.Chown(hers, nobody, nobody)
		}
		const hba = "hostssl all app all scram-sha-256\nhostssl template1 all all trust clientcert=verify-ca\nhostssl postgres all all trust\n"
		return errors.Join(err, os.WriteFile(filepath.Join(dir, "data", "pg_hba.conf"), []byte(hba), 0o600))
	}
	args := k.args
	k.args = func(dir string, ports []int) []string {
		return append(args(dir, ports), "-c", "ssl=on", "-c", "ssl_ca_file="+ca.File, "-c", "ssl_cert_file="+cert.CertFile,
			"-c", "ssl_key_file="+filepath.Join(dir, "server.key"))
	}
	return start(t, k, nil)
}

// MariaDBTLS starts a MariaDB that lets nobody in without TLS: root with TLS alone, and the user
// shown only with a certificate.
func MariaDBTLS(t testing.TB, ca *CA) *Server {
	t.Helper()
	cert, k := ca.Issue("mariadb"), mariadbKind
	k.fill = func(k kind, path, dir string, ports []int) error {
		if err := fillMariaDB(k, path, dir, ports); err != nil {
			return err
		}
		const users = "CREATE DATABASE IF NOT EXISTS pawl;\nCREATE USER IF NOT EXISTS shown REQUIRE X509;\nGRANT ALL ON pawl.* TO shown;\n"
		return os.WriteFile(filepath.Join(dir, "init.sql"), []byte(users), 0o600)
	}
	k.ready = func(addr string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		config := MariaDBConfig(addr)
		config.TLS = ca.Client()
		config.TLS.ServerName = "localhost"
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return err
		}
		db := sql.OpenDB(connector)
		_, err = db.ExecContext(ctx, "SELECT 1")
		return errors.Join(err, db.Close())
	}
	return start(t, k, []string{
		"--require-secure-transport=ON", "--ssl-ca=" + ca.File, "--ssl-cert=" + cert.CertFile, "--ssl-key=" + cert.KeyFile,
	})
}
