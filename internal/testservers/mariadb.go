package testservers

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// mariadbKind: a server deletes all temporary tables in its tmpdir when it starts, so each server
// has a tmpdir of its own.
var mariadbKind = kind{
	name: "mariadbd", binary: "PAWL_TEST_MARIADB_SERVER", given: "PAWL_TEST_MARIADB", ports: 1,
	args: func(dir string, ports []int) []string {
		return append(asRoot([]string{
			"--no-defaults", "--datadir=" + filepath.Join(dir, "data"), "--tmpdir=" + dir, "--port=" + strconv.Itoa(ports[0]),
			"--socket=" + filepath.Join(dir, "my.sock"), "--pid-file=" + filepath.Join(dir, "my.pid"),
			"--init-file=" + filepath.Join(dir, "init.sql"), "--bind-address=127.0.0.1",
		}), tuned(mariadbSettings)...)
	},
	ready:   mariadbReady,
	folders: []string{"/usr/sbin", "/usr/libexec"},
	fill:    fillMariaDB,
}

// asRoot lets a server run as root, which the server refuses without this option.
func asRoot(args []string) []string {
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}

func fillMariaDB(k kind, path, dir string, _ []int) error {
	err := k.copyTemplate(dir, func(data string) error {
		install, err := exec.LookPath("mariadb-install-db")
		if err != nil {
			install = filepath.Join(filepath.Dir(path), "..", "bin", "mariadb-install-db")
		}
		return run(k.command(install, append(asRoot([]string{
			"--no-defaults", "--datadir=" + data, "--tmpdir=" + filepath.Dir(data), "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
		}), tuned(mariadbSizes)...)...))
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "init.sql"), []byte("CREATE DATABASE IF NOT EXISTS pawl;\n"), 0o600)
}

// MariaDB starts a private MariaDB for one test, with options such as "--max-connections=10". The
// server keeps its data over Kill and Restart.
func MariaDB(t testing.TB, args ...string) *Server { t.Helper(); return start(t, mariadbKind, args) }

// SharedMariaDB returns the MariaDB of this test process, or the MariaDB that PAWL_TEST_MARIADB
// names. That server has a database pawl and lets root in without a password. Tests use names of
// their own in it.
func SharedMariaDB(t testing.TB) *Server { t.Helper(); return shared(t, mariadbKind) }

// MariaDBConfig is how to connect, as root, to the database pawl of the server
// or proxy at addr. FormatDSN of it is for sql.Open.
func MariaDBConfig(addr string) *mysql.Config {
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr, config.DBName = "root", "tcp", addr, "pawl"
	config.Logger = &mysql.NopLogger{} // every important message comes as an error
	return config
}

func mariadbReady(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	connector, err := mysql.NewConnector(MariaDBConfig(addr))
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	_, err = db.ExecContext(ctx, "SELECT 1")
	return errors.Join(err, db.Close())
}
