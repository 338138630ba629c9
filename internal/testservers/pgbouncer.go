package testservers

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// PgBouncer starts a private pgbouncer for one test, in front of the PostgreSQL at upstream. The pooler
// pools by the transaction: the settings of a session are lost in the next transaction. The pooler knows no
// prepared statements.
func PgBouncer(t testing.TB, upstream string) *Server {
	t.Helper()
	return start(t, kind{
		name: "pgbouncer", binary: "PAWL_TEST_PGBOUNCER", ports: 1,
		args:    func(dir string, _ []int) []string { return []string{filepath.Join(dir, "pgbouncer.ini")} },
		ready:   postgresReady,
		folders: []string{"/usr/sbin"},
		nobody:  true,
		fill: func(_ kind, _, dir string, ports []int) error {
			host, port, err := net.SplitHostPort(upstream)
			if err != nil {
				return err
			}
			config := fmt.Sprintf(`[databases]
* = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 1000
default_pool_size = 20
`, host, port, ports[0])
			return os.WriteFile(filepath.Join(dir, "pgbouncer.ini"), []byte(config), 0o644)
		},
	}, nil)
}
