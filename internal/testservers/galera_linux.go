package testservers

import (
	"path/filepath"
	"strconv"
	"testing"
)

// Galera starts a private MariaDB that is the first node of a Galera cluster, which could have more nodes.
func Galera(t testing.TB) *Server {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib*/galera*/libgalera_smm.so") // the pattern is well formed
	if len(found) == 0 {
		t.Fatal("the library of Galera is missing: install it with `make setup`")
	}
	k := mariadbKind
	k.ports = 2
	k.args = func(dir string, ports []int) []string {
		node := "127.0.0.1:" + strconv.Itoa(ports[1])
		return append(mariadbKind.args(dir, ports), "--wsrep-on=ON", "--wsrep-new-cluster", "--wsrep-cluster-address=gcomm://", "--wsrep-provider="+found[0],
			"--wsrep-provider-options=gmcast.listen_addr=tcp://"+node, "--wsrep-node-address="+node, "--binlog-format=ROW")
	}
	return start(t, k, nil)
}
