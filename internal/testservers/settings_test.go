package testservers

import (
	"database/sql"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // "pgx"
)

var postgresChanges = append(slices.Clone(postgresSettings), setting{[]string{"wal_segment_size=1048576"}, "initdb"})

// TestSettings: the servers report the settings of the lists, and otherwise the settings of servers
// as shipped.
func TestSettings(t *testing.T) {
	for _, kind := range []struct {
		name     string
		settings []setting
		start    func(testing.TB, ...string) *Server
		ask      func(*testing.T, *Server) map[string]string
		follows  []string // from its place, or from another setting
	}{
		{"Redis", redisSettings, Redis, redisConfig, []string{"dir", "port", "repl_ping_slave_period"}},
		{"PostgreSQL", postgresChanges, Postgres, postgresConfig, []string{
			"config_file", "data_directory", "external_pid_file", "hba_file", "ident_file", "port", "shared_memory_size",
			"shared_memory_size_in_huge_pages", "max_wal_size", "min_wal_size", "wal_buffers",
		}},
		{"MariaDB", mariadbSettings, MariaDB, mariadbConfig, []string{
			"aria_log_dir_path", "datadir", "init_file", "pid_file", "port", "report_port", "server_uid", "slave_load_tmpdir", "socket", "tmpdir", "timestamp", "wsrep_data_home_dir",
			"back_log", "host_cache_size", "innodb_log_file_buffering", "open_files_limit", "table_open_cache", "thread_cache_size",
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Setenv("PAWL_TEST_AS_SHIPPED", "")
			ours := kind.ask(t, kind.start(t))
			t.Setenv("PAWL_TEST_AS_SHIPPED", "1")
			shipped := kind.ask(t, kind.start(t))
			listed := make(map[string]bool)
			for _, s := range kind.settings {
				listed[settingName(s)] = true
			}
			for _, name := range slices.Sorted(maps.Keys(ours)) {
				key := underscored(name)
				if is := ours[name]; is != shipped[name] && !listed[key] && !slices.Contains(kind.follows, key) {
					t.Errorf("%s is %q, %q as shipped, and is not in the list", name, is, shipped[name])
				} else if is == shipped[name] && listed[key] {
					t.Errorf("%s is in the list, and %q as shipped", name, is)
				}
				delete(listed, key)
			}
			for name := range listed {
				t.Errorf("%s is in the list, and the server does not know it", name)
			}
		})
	}
}

// settingName is the server's name of a setting.
func settingName(s setting) string {
	name, _, _ := strings.Cut(s.set[0], "=")
	if name == "-c" {
		name, _, _ = strings.Cut(s.set[1], "=")
	}
	return underscored(strings.TrimPrefix(name, "--"))
}

func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

func redisConfig(t *testing.T, s *Server) map[string]string {
	t.Helper()
	reply, err := redisAsk(s.Addr, "CONFIG GET *")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(reply, "\n")
	config := make(map[string]string)
	for i := 0; i+1 < len(lines); i += 2 {
		config[lines[i]] = lines[i+1]
	}
	return config
}

func postgresConfig(t *testing.T, s *Server) map[string]string {
	t.Helper()
	return rows(t, "pgx", PostgresURL(s.Addr), "SELECT name, setting FROM pg_settings")
}

func mariadbConfig(t *testing.T, s *Server) map[string]string {
	t.Helper()
	return rows(t, "mysql", MariaDBConfig(s.Addr).FormatDSN(), "SHOW GLOBAL VARIABLES")
}

func rows(t *testing.T, driver, dsn, query string) map[string]string {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	result, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer result.Close()
	config := make(map[string]string)
	for result.Next() {
		var name, value string
		if err := result.Scan(&name, &value); err != nil {
			t.Fatal(err)
		}
		config[name] = value
	}
	if err := result.Err(); err != nil {
		t.Fatal(err)
	}
	return config
}

// TestReasons: each setting has a reason.
func TestReasons(t *testing.T) {
	for _, settings := range [][]setting{
		redisSettings, redisClusterSettings, postgresSettings, postgresInitSettings, mariadbSettings, etcdSettings, zookeeperSettings, zookeeperConfig, rabbitmqSettings,
	} {
		for _, s := range settings {
			if len(s.set) == 0 || s.why == "" {
				t.Errorf("%q: %q", s.set, s.why)
			}
		}
	}
}

// TestCommandsAsShipped: some servers do not tell their settings. As shipped, their commands have
// none except places.
func TestCommandsAsShipped(t *testing.T) {
	t.Setenv("PAWL_TEST_AS_SHIPPED", "1")
	for _, s := range etcdSettings {
		if args := etcdKind.args(t.TempDir(), []int{1, 2}); slices.Contains(args, s.set[0]) {
			t.Errorf("etcd: %q", args)
		}
	}
	for _, s := range zookeeperSettings {
		if args := zookeeperKind.args(t.TempDir(), []int{1, 2}); slices.Contains(args, s.set[0]) {
			t.Errorf("ZooKeeper: %q", args)
		}
	}
	says, err := ZooKeeperSays(ZooKeeper(t).Addr, "conf")
	if err != nil || !strings.Contains(says, "tickTime=2000\n") || !strings.Contains(says, "maxClientCnxns=60\n") {
		t.Errorf("ZooKeeper: %s, %v", says, err)
	}
	reply, err := http.Get("http://" + Etcd(t).Addr + "/health")
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if os.Getenv("PAWL_TEST_ETCD") == "" && !AsShipped() {
		t.Error("not as shipped")
	}
}
