//go:build unix

package cli

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/internal/testservers"
)

const secret = "s3cret"

// refused fails the test unless pawl says in one line, without the secret, that
// the store cannot be used.
func refused(t *testing.T, store string, code int, says string) {
	t.Helper()
	for _, args := range [][]string{{"run", "x", "--", "true"}, {"ls"}} {
		began := time.Now()
		stdout, stderr := want(t, code, store, args...)
		complaint(t, stderr, says)
		if strings.Contains(stdout+stderr, secret) {
			t.Errorf("%s: the secret is printed: %s", args[0], stderr)
		}
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("%s took %v", args[0], took)
		}
	}
}

func TestStore_wrong_URL(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"rediss3cret":                      "it has no scheme: known are etcd, etcds, memory,",
		"consul://u:s3cret@127.0.0.1":      `unknown scheme "consul": known are etcd,`,
		"redis://u:s3cret@127.0.0.1?tls=1": `unknown parameter "tls": allowed is prefix, wait, `,
		"etcd://u:s3cret@127.0.0.1/db":     "it has a path",
		"redis://u:/s3cret@127.0.0.1":      "percent-encoded",
		"redis://u:12#s3cret@127.0.0.1":    "percent-encoded",
		"redis://u:p@s3cret/@127.0.0.1":    "percent-encoded",
		"etcd://u:s3cret@127.0.0.1:1:2":    "a host is wrong: a port is a number",
		"redis://u:s3cret@127.0.0.1:70000": "a port is not a number from 1 to 65535",
		"redis://u:s3cret@127.0.0.1/a":     `the database is not a number`,
		"sqlite:":                          "the path is missing",
		"sqlite:x.db?mode=ro":              `unknown parameter "mode": none is allowed`,
	} {
		refused(t, url, 64, says)
	}
}

func TestStore_flag_wins(t *testing.T) {
	t.Parallel()
	want(t, 0, "nonsense", "ls", "--store", sqliteStore(t))
}

// An empty variable, as from an unset setting, names no store. A lock of this machine would look
// like a lock of all machines. No verb makes the file of the user then.
func TestStore_empty_variable(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for _, verb := range verbs {
		cmd := command(t, "", verb...)
		cmd.Env = append(cmd.Env, "HOME="+home, "XDG_STATE_HOME=")
		p := start(t, cmd)
		if code := p.wait(); code != 64 {
			t.Errorf("%q: exit code %d", verb, code)
		}
		complaint(t, p.errors(), "PAWL_STORE is empty")
	}
	if made, err := os.ReadDir(home); err != nil || len(made) > 0 {
		t.Errorf("in the home folder are %v, %v", made, err)
	}
	want(t, 0, "", "run", "--store", sqliteStore(t), "x", "--", "true") // the flag wins
}

// A store inside one process would exclude nobody.
func TestStore_inside_one_process(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		ran := filepath.Join(t.TempDir(), "ran")
		for i, arg := range verb {
			if arg == "true" {
				verb = append(slices.Clone(verb[:i]), "touch", ran)
			}
		}
		for _, test := range []struct {
			variable string
			args     []string
		}{
			{"memory:", verb},
			{sqliteStore(t), append([]string{"--store", "memory:"}, verb...)},
			{sqliteStore(t), append([]string{verb[0], "--store=memory:"}, verb[1:]...)},
		} {
			_, stderr := want(t, 64, test.variable, test.args...)
			complaint(t, stderr, "the store memory is inside one process: no other process would see it")
		}
		if _, err := os.Stat(ran); !os.IsNotExist(err) {
			t.Errorf("%q ran its command: %v", verb, err)
		}
	}
}

// verbs are the verbs that use a store.
var verbs = [][]string{
	{"run", "x", "--", "true"}, {"elect", "x", "--", "true"}, {"ls"}, {"ls", "--watch"}, {"show", "x"},
	{"break", "x"}, {"break", "--yes", "x"}, {"resize", "x", "3"}, {"store", "init"}, {"id", "segment", "x"},
}

func TestStore_down(t *testing.T) {
	t.Parallel()
	refused(t, "redis://u:s3cret@127.0.0.1:1", 69, "connect to redis at 127.0.0.1:1: store unavailable: dial tcp 127.0.0.1:1: connect: connection refused")
	refused(t, "etcd://u:s3cret@127.0.0.1:1,localhost:1", 69, "connect to etcd at 127.0.0.1:1,localhost:1: store unavailable: dial tcp")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, "sqlite:"+file+"/pawl.db", 69, "not a directory")
	if err := os.WriteFile(file, []byte(strings.Repeat("no database\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, "sqlite:"+file, 69, "file is not a database")
}

func TestStore_hangs(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for _, scheme := range []string{"redis", "rediss", "etcd", "etcds"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, stderr := want(t, 69, scheme+"://u:s3cret@"+silent.Addr().String(), "ls")
			complaint(t, stderr, "store unavailable: ")
			if took := time.Since(began); took > 8*time.Second || strings.Contains(stderr, secret) {
				t.Errorf("after %v: %s", took, stderr)
			}
		})
	}
}

func TestStore_redis_with_password(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t, "--requirepass", "the right one")
	refused(t, "redis://:s3cret@"+server.Addr, 69, "WRONGPASS")
	refused(t, "redis://u:s3cret@"+server.Addr, 69, "WRONGPASS")
	refused(t, "redis://"+server.Addr, 69, "NOAUTH")
	store := "redis://:the%20right%20one@" + server.Addr + "/3"
	want(t, 0, store, "store", "init") // else the first lock waits for a TTL
	want(t, 0, store, "run", "x", "--", "true")
}

func TestStore_etcd_with_password(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	ctx := t.Context()
	if _, err := admin.UserAdd(ctx, "root", "the right one"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.UserGrantRole(ctx, "root", "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
	refused(t, "etcd://root:s3cret@"+server.Addr, 69, "invalid user ID or password")
	refused(t, "etcd://"+server.Addr, 69, "user name is empty")
	want(t, 0, "etcd://root:the%20right%20one@"+server.Addr, "run", "x", "--", "true")
}

func TestStore_prefix_keeps_fleets_apart(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"redis", "etcd"} {
		store := stores[kind](t)
		for _, prefix := range []string{"one:", "two:"} { // Redis waits for one TTL where it finds nothing
			want(t, 0, store+"?prefix="+prefix, "run", "--ttl", "1s", "x", "--", "true")
		}
		held(t, store+"?prefix=one:", "x")
		want(t, 75, store+"?prefix=one:", "run", "--try", "x", "--", "true")
		if is := states(t, store+"?prefix=two:", "x"); is != "" {
			t.Errorf("%s: claims %s", kind, is)
		}
	}
}

// A verb that only reads creates no store: neither a file nor tables.
func TestStore_is_not_created_by_reading(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "folder", "pawl.db")
	for _, store := range []string{
		"sqlite:" + path,
		stores["postgres"](t) + "?schema=nobody",
		stores["postgres"](t) + "?mode=row&schema=nobody",
		stores["mysql"](t) + "?prefix=nobody_",
		stores["mysql"](t) + "?mode=row&prefix=nobody_",
	} {
		for range 2 { // the first call created nothing
			for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"show", "x"}, {"break", "x"}} {
				stdout, stderr := want(t, 0, store, args...)
				complaint(t, stderr, "no store yet: nobody has used it")
				if strings.Contains(stdout, "granted") || strings.Count(stdout, "\n") > 1 {
					t.Errorf("%s %q prints %s", store, args, stdout)
				}
			}
		}
	}
	_, stderr := want(t, 69, "sqlite:"+path, "ls", "--watch")
	complaint(t, stderr, "no store yet")
	if _, err := os.Stat(filepath.Dir(path)); !os.IsNotExist(err) {
		t.Errorf("the folder: %v", err)
	}
}

// TestStore_without_values: what docs/command.md says of Redlock and row mode holds, before any command runs.
func TestStore_without_values(t *testing.T) {
	t.Parallel()
	redlock := "redlock:" + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr
	want(t, 0, redlock, "store", "init")
	box := "sqlite:" + filepath.Join(t.TempDir(), "box.db")
	want(t, 0, "memory:", "outbox", "migrate", "--db", box)
	for _, store := range []string{redlock, stores["postgres"](t) + "?mode=row", stores["mysql"](t) + "?mode=row"} {
		for _, line := range []string{"run --shared x -- true", "run -n 2 x -- true", "slot -n 2 x -- true", "elect x -- true", "join x --addr h:1 -- true", "members x",
			"members --watch x", "proxy --listen 127.0.0.1:0 --group g", "outbox relay --to http://127.0.0.1:1/ --db " + box, "idem run x -- true", "id segment x"} {
			_, stderr, code := invoke(t, store, strings.Fields(line)...)
			if code != 64 || !strings.Contains(stderr, "unsupported") {
				t.Errorf("%s on %s: exit code %d: %s", line, place(store), code, stderr)
			}
		}
	}
}
