//go:build unix

package cli

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
)

// made runs pawl id and returns the IDs that it prints. made fails the test if pawl says anything
// else.
func made(t *testing.T, store string, args ...string) []string {
	t.Helper()
	cmd := command(t, store, append([]string{"id"}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("pawl id %q: %v: %s", args, err, stderr.String())
	}
	return strings.Fields(stdout.String())
}

// numbers are IDs that are numbers. The numbers have to rise.
func numbers(t *testing.T, ids []string) (all []int64) {
	t.Helper()
	for _, one := range ids {
		n, err := strconv.ParseInt(one, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) > 0 && n <= all[len(all)-1] {
			t.Fatalf("%d after %d", n, all[len(all)-1])
		}
		all = append(all, n)
	}
	return all
}

// unique fails the test unless there are n IDs, none twice.
func unique(t *testing.T, n int, ids []string) {
	t.Helper()
	if len(ids) != n {
		t.Errorf("%d IDs, want %d", len(ids), n)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != n {
		t.Errorf("an ID is there twice")
	}
}

func mariadbURL(t *testing.T) string {
	return "mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl"
}

func postgresURL(t *testing.T) string {
	return "postgres://postgres@" + testservers.SharedPostgres(t).Addr + "/postgres"
}

func TestID_uuids(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"uuid4", "uuid7"} {
		ids := made(t, "nonsense", kind, "-n", "20001") // a UUID needs no store
		if kind == "uuid7" && !slices.IsSorted(ids) {
			t.Error("UUIDs of version 7 fall")
		}
		unique(t, 20001, ids)
	}
	if ids := made(t, "nonsense", "uuid4"); len(ids) != 1 || len(ids[0]) != 36 {
		t.Errorf("one UUID is %q", ids)
	}
}

// TestID_of_a_store: the IDs of several processes at the same time are unique, and the IDs of one
// process rise.
func TestID_of_a_store(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		accept := []string{}
		if !strings.HasPrefix(store, "sqlite:") && !strings.HasPrefix(store, "etcd:") {
			accept = []string{"--allow-forgetting"}
		}
		for _, args := range [][]string{
			{"snowflake", name}, {"segment", name},
			{"readable", name, "--template", "O-{date:060102}-{field:user:4}-{n:9}-{check}", "--field", "user=0815"},
		} {
			var all []string
			var running []*process
			for range 3 {
				running = append(running, start(t, command(t, store, slices.Concat([]string{"id"}, args, []string{"-n", "301"}, accept)...)))
			}
			for _, p := range running {
				if code := p.wait(); code != 0 {
					t.Fatalf("%s: exit code %d: %s", args[0], code, p.errors())
				}
				var ids []string
				for line := range p.lines {
					ids = append(ids, line)
				}
				if args[0] != "readable" {
					numbers(t, ids)
				} else if !strings.Contains(ids[0], "-0815-") {
					t.Errorf("the ID is %s", ids[0])
				}
				all = append(all, ids...)
			}
			unique(t, 3*301, all)
		}
	})
}

// TestID_segment_leaves_no_gap: a run reserves exactly the numbers that it prints.
func TestID_segment_leaves_no_gap(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"segment", fresh(t)},
		{"segment", fresh(t), "--db", sqliteStore(t)},
		{"segment", fresh(t), "--db", postgresURL(t)},
		{"segment", fresh(t), "--db", mariadbURL(t)},
	} {
		store := sqliteStore(t)
		for next := int64(1); next < 30000; {
			for _, n := range numbers(t, made(t, store, append(args, "-n", "12345")...)) {
				if n != next {
					t.Fatalf("%q: %d, want %d", args, n, next)
				}
				next++
			}
		}
	}
}

func TestID_sequence(t *testing.T) {
	t.Parallel()
	name := fresh(t)
	dir := t.TempDir()
	args := []string{"sequence", name, "--step", "5"}
	for _, url := range []string{"sqlite:" + filepath.Join(dir, "a.db"), postgresURL(t), mariadbURL(t)} {
		args = append(args, "--db", url)
	}
	var all []string
	for range 4 {
		all = append(all, made(t, "nonsense", append(args, "-n", "50")...)...)
	}
	unique(t, 200, all)
	_, stderr := want(t, 64, "nonsense", "id", "sequence", name, "--step", "5", "--db", args[4+1], "--db", "sqlite:"+filepath.Join(dir, "b.db"))
	complaint(t, stderr, "mismatch")

	one := []string{"sequence", name, "--db", "sqlite:" + filepath.Join(dir, "one.db"), "-n", "3"}
	if got := slices.Concat(numbers(t, made(t, "nonsense", one...)), numbers(t, made(t, "nonsense", one...))); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6}) {
		t.Errorf("one database gives %d", got)
	}
	// A database that is away is skipped, once the set is known.
	away := slices.Clone(args)
	away[len(away)-1] = "mysql://root@127.0.0.1:1/pawl"
	unique(t, 200+50, append(all, made(t, "nonsense", append(away, "-n", "50")...)...))
}

// TestID_redis_emptied: with a mark no number comes twice.
func TestID_redis_emptied(t *testing.T) {
	t.Parallel()
	db := "redis://" + testservers.Redis(t).Addr
	client, err := open.OpenRedis(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	marked := func() []string { return made(t, sqliteStoreIn(t, "mark"), "redis", "marked", "--db", db, "-n", "100") }
	bare := func() string {
		cmd := command(t, "", "id", "redis", "bare", "--db", db)
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "PAWL_STORE=") })
		p := start(t, cmd)
		if code := p.wait(); code != 0 {
			t.Fatalf("exit code %d: %s", code, p.errors())
		}
		complaint(t, p.errors(), "redis counts without a mark: numbers repeat after")
		return p.line()
	}
	first, one := marked(), bare()
	numbers(t, first)
	if err := client.Do(t.Context(), client.B().Flushall().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	second := marked()
	numbers(t, second)
	unique(t, 200, append(first, second...))
	if again := bare(); one != "1" || again != "1" {
		t.Errorf("a bare Redis gives %s and, when it was emptied, %s", one, again)
	}
}

// sqliteStoreIn is one store for a whole test.
func sqliteStoreIn(t *testing.T, name string) string {
	return "sqlite:" + filepath.Join(filepath.Dir(t.TempDir()), name+".db")
}

// TestID_forgetting: a store that forgets is refused. The error names the flag that accepts such a
// store.
func TestID_forgetting(t *testing.T) {
	t.Parallel()
	store := stores["redis"](t)
	for _, args := range [][]string{
		{"snowflake", fresh(t)}, {"segment", fresh(t)}, {"readable", fresh(t), "--template", "{n:3}"},
		{"redis", fresh(t), "--db", store},
	} {
		args = append([]string{"id"}, args...)
		stdout, stderr := want(t, 64, store, args...)
		complaint(t, stderr, "the store may lose its last writes in a restart, and then IDs repeat")
		complaint(t, stderr, "which is --allow-forgetting here")
		if orDB := args[1] == "segment" || args[1] == "readable"; orDB != strings.Contains(stderr, "in a database, which is --db") {
			t.Errorf("%q says: %s", args, stderr)
		}
		if stdout != "" {
			t.Errorf("%q prints %s", args, stdout)
		}
		stdout, stderr = want(t, 0, store, append(args, "--allow-forgetting")...)
		complaint(t, stderr, "redis may lose its last writes: then the IDs that were made under them repeat")
		unique(t, 1, strings.Fields(stdout))
	}
}

func TestID_refuses(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"":                                  "a kind is missing (try: pawl help id)",
		"nosuch x":                          `unknown command "nosuch" for "pawl id"`,
		"uuid4 x":                           "the form is: pawl id uuid4 [flags]",
		"segment":                           "the form is: pawl id segment NAME [flags]",
		"segment x -n 0":                    "-n is 0: 1 to 1000000000 are allowed",
		"segment x --db redis://127.0.0.1":  "redis is no SQL database: allowed are mysql,",
		"segment x --db sqlite:a --db b":    "--db is given 2 times: segment is in one place",
		"segment x --store a --db sqlite:a": "--store and --db exclude each other",
		"segment x --db sqlite:a --allow-forgetting":      "--allow-forgetting is for --store, and the numbers are in --db",
		"snowflake x --db sqlite:a":                       "unknown flag: --db (try: pawl help id snowflake)",
		"snowflake x --bits 41/10":                        `--bits is "41/10": three numbers`,
		"snowflake x --bits 41/10/13":                     "they must be 63 together",
		"snowflake x --unit 1us":                          "whole milliseconds from 1ms to 1s are allowed",
		"snowflake x --epoch 2999-01-01T00:00:00Z":        "which is in the future",
		"snowflake x --epoch yesterday":                   `--epoch is "yesterday"`,
		"uuid7 --store sqlite:a":                          "--store is not for uuid7: UUIDs need no store",
		"sequence x":                                      "--db is missing: the URL of a database",
		"sequence x --db sqlite:a --db sqlite:b":          "--step is missing: how many databases there may ever be, 2 or more",
		"sequence x --db sqlite:a --db sqlite:b --step 1": "--step is 1: 2 to 1000000 are allowed",
		"sequence x --db etcd://127.0.0.1":                "etcd is no SQL database",
		"sequence x --store sqlite:a --db sqlite:b":       "--store is not for sequence",
		"redis x":                                   "--db is missing: the URL of a Redis",
		"redis x --db zk://127.0.0.1":               "zk is no Redis: allowed are redis,",
		"redis x --db redis://127.0.0.1?wait=1":     `unknown parameter "wait"`,
		"readable x":                                "--template is missing, as ",
		"readable x --template {field:user:4}{n:3}": `--field: invalid: field "user" is missing`,
		"readable x --template ORD":                 "it has 0 counters: one is needed",
		"readable x --template {n:3} --zone x":      `--zone is "x": the name of a time zone`,
		"readable x --template {n:3} --field a":     `--field is "a": KEY=VALUE is allowed`,
		"readable x --template {n:3} --field a=b":   `"a"`,
		"explain":                                "the form is: pawl id explain ID [flags]",
		"explain abc":                            `the ID "abc" is neither a UUID nor a number from 0 to 9223372036854775807`,
		"explain 9223372036854775808":            "is neither a UUID nor a number",
		"explain +5":                             "is neither a UUID nor a number",
		"explain --template {n:3}-{digit} 001-9": "it is 9 and should be",
		"explain 019aa7f2-9c4c-7e1c-8f5e-3d1a6f0c2b4": "is neither a UUID nor a number",
		"explain --bits 0/0/63 5":                     "the time has 1 bit or more",
	} {
		stdout, stderr := want(t, 64, "nonsense", append([]string{"id"}, strings.Fields(line)...)...)
		complaint(t, stderr, says)
		if stdout != "" {
			t.Errorf("%s: prints %s", line, stdout)
		}
	}
	_, stderr := want(t, 64, sqliteStore(t), "id", "segment", "a\nb")
	complaint(t, stderr, "control character")
	_, stderr = want(t, 69, "redis://127.0.0.1:1", "id", "segment", "x")
	complaint(t, stderr, "store unavailable")
	_, stderr = want(t, 69, "nonsense", "id", "segment", "x", "--db", "postgres://u:s3cret@127.0.0.1:1/d")
	complaint(t, stderr, "store unavailable")
	if strings.Contains(stderr, secret) {
		t.Errorf("the secret is printed: %s", stderr)
	}
	redlock := "redlock:" + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr + "," + testservers.Redis(t).Addr
	_, stderr = want(t, 64, redlock, "id", "segment", "x")
	complaint(t, stderr, "unsupported")
}

// TestID_exhausted: the counter has reached its number of digits.
func TestID_exhausted(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	args := []string{"readable", "x", "--template", "{n:1}"}
	unique(t, 9, made(t, store, append(args, "-n", "9")...))
	_, stderr := want(t, 69, store, append([]string{"id"}, args...)...)
	complaint(t, stderr, "no numbers left")
}

// TestID_reader_gone: a reader that has gone is no error.
func TestID_reader_gone(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"uuid4", "snowflake x"} {
		cmd := command(t, sqliteStore(t), append(append([]string{"id"}, strings.Fields(kind)...), "-n", "1000000000")...)
		if line := readsALine(t, cmd); len(line) < 10 {
			t.Errorf("%s: the first line is %q", kind, line)
		}
	}
}

// readsALine runs a command whose reader goes after one line. That is no error of the command.
func readsALine(t *testing.T, cmd *exec.Cmd) (line string) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() }) //nolint:errcheck // it has ended
	if line, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Errorf("%s: the first line is %q, %v", cmd, line, err)
	}
	out.Close()
	if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("%s: %v: %s", cmd, err, stderr.String())
	}
	return line
}

// TestID_signal: a long row ends, also when its reader has stopped.
func TestID_signal(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGQUIT} {
		cmd := command(t, sqliteStore(t), "id", "snowflake", "x", "-n", "1000000000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() }) //nolint:errcheck // it has ended
		if _, err := io.ReadFull(out, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		cmd.Wait() //nolint:errcheck // the state tells
		if code := cmd.ProcessState.ExitCode(); code != 128+int(sig) {
			t.Errorf("%v: exit code %d", sig, code)
		}
		complaint(t, stderr.String(), "ended by signal")
	}
}

func TestID_explain(t *testing.T) {
	t.Parallel()
	for line, parts := range map[string][]string{
		"383098249596108801": {`kind snowflake`, `time 2026-11-23T03:35:40\.325Z`, `worker 0`, `sequence 1`, `layout 41/10/12 bits, .*`},
		"--bits 40/3/20 --unit 1s --epoch 2020-01-01T00:00:00Z 83886090": {`kind snowflake`, `time 2020-01-01T00:00:10.000Z`, `worker 0`, `sequence 10`, `layout .*`},
		"00000000-0000-0000-0000-000000000000":                           {`kind UUID`, `version none: all bits are 0`},
		"f06f0cfa-4ff8-4709-9646-b84b1315127a":                           {`kind UUID`, `version 4`},
		"01a20679-44e8-769d-b892-acfca7d6cea1":                           {`kind UUID`, `version 7`, `time 2026-11-23T03:35:40\.520Z`},
		"c232ab00-9414-11ec-b3c8-9f6bdeced846":                           {`kind UUID`, `version 1`, `time 2022-02-22T19:22:22\.000Z`},
		"f06f0cfa-4ff8-4709-1646-b84b1315127a":                           {`kind UUID`, `version none: its variant is Reserved`},
	} {
		args := append([]string{"id", "explain"}, strings.Fields(line)...)
		stdout, stderr := want(t, 0, "nonsense", args...)
		if stderr != "" {
			t.Errorf("%s: %s", line, stderr)
		}
		matches(t, stdout, parts...)
	}
	template := "ORD-{date:20060102}-{field:u:2}-{n:7}-{digit}"
	ids := made(t, sqliteStore(t), "readable", "x", "--template", template, "--zone", "Asia/Shanghai", "--field", "u=12")
	stdout, _ := want(t, 0, "nonsense", "id", "explain", "--template", template, "--zone", "Asia/Shanghai", ids[0])
	matches(t, stdout, `kind readable`, `time \d{4}-\d\d-\d\dT00:00:00\.000\+08:00`, `number 1`, `field u 12`, `check \d`)
	stdout, _ = want(t, 0, "nonsense", "id", "explain", made(t, sqliteStore(t), "snowflake", "x", "--bits", "42/8/13")[0], "--bits", "42/8/13")
	if !strings.Contains(stdout, "worker    0\n") {
		t.Errorf("the parts are %s", stdout)
	}
}
