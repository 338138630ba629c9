//go:build unix

package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// verbsBelow calls fn with each verb of pawl, and the words that call the verb.
func verbsBelow(cmd *cobra.Command, words []string, fn func(cmd *cobra.Command, words []string)) {
	for _, sub := range cmd.Commands() {
		if sub.Name() != "help" && sub.Name() != "completion" { // which are of the library
			verbsBelow(sub, append(words[:len(words):len(words)], sub.Name()), fn)
		}
	}
	fn(cmd, words)
}

// TestUsage_empty: a flag that is given empty, as by a variable that is not set, is refused. The default would be another database, another broker,
// or no TLS.
func TestUsage_empty(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "box.db")
	want(t, 0, "memory:", "outbox", "migrate", "--db", "sqlite:"+file)
	fillBox(t, "sqlite:"+file, "pawl_outbox")
	count := func() string {
		t.Helper()
		stdout, _ := want(t, 0, "memory:", "outbox", "ls", "--db", "sqlite:"+file)
		return stdout
	}
	before := count()
	arguments := map[string]string{ // that each verb needs before its flags are looked at
		"show": "x", "break": "x", "resize": "x 1", "members": "x", "idem show": "x", "idem run": "x -- true", "outbox show": "x", "tx show": "pawl-1-2-3",
		"tx resolve": "pawl-1-2-3", "tx trust": "x", "id explain": "1", "id snowflake": "x", "id segment": "x", "id sequence": "x", "id redis": "x", "id readable": "x",
	}
	checked := 0
	verbsBelow(newRoot(), nil, func(cmd *cobra.Command, words []string) {
		flags := func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			checked++
			line := append(append(append([]string{}, words...), "--"+f.Name+"="), strings.Fields(arguments[strings.Join(words, " ")])...)
			if cmd.Name() == "purge" {
				line = append(line, "--older", "0s")
			}
			p := command(t, "redis://127.0.0.1:1", line...)
			p.Env = append(p.Env, "PAWL_DB=sqlite:"+file, "PAWL_TO=nats://127.0.0.1:1")
			of := start(t, p)
			if code := of.wait(); code != exitUsage || !strings.Contains(of.errors(), "--"+f.Name) {
				t.Errorf("%q: exit code %d: %s", line, code, of.errors())
			}
			if f.Value.Type() == "string" {
				complaint(t, of.errors(), "--"+f.Name+" is empty")
			}
		}
		cmd.InitDefaultHelpFlag()
		cmd.LocalFlags().VisitAll(flags)
		cmd.InheritedFlags().VisitAll(flags)
	})
	if after := count(); after != before {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
	t.Logf("%d flags", checked)
	if checked < 200 {
		t.Errorf("%d flags only", checked)
	}
	for line, flag := range map[string]string{"id sequence x --db a: --db=": "db", "proxy --listen :0 --group g --trusted 10.0.0.0/8,": "trusted"} {
		_, stderr := want(t, 64, "memory:", strings.Fields(line)...)
		complaint(t, stderr, "--"+flag+" is empty")
	}
}

// TestUsage_storeless: a verb that asks no store refuses --store. An operator who gives one means another place than the verb asks.
func TestUsage_storeless(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"version":                 "--store is not for version: this verb asks no store",
		"id explain 1":            "--store is not for id explain: this verb asks no store",
		"id uuid4":                "--store is not for uuid4: UUIDs need no store",
		"outbox":                  "--store is not for outbox: ",
		"outbox migrate":          "--store is not for outbox migrate: the table is in the database of --db",
		"outbox status":           "--store is not for outbox status: ",
		"outbox ls":               "--store is not for outbox ls: ",
		"outbox show x":           "--store is not for outbox show: ",
		"outbox requeue --all":    "--store is not for outbox requeue: ",
		"outbox purge --older 1h": "--store is not for outbox purge: ",
		"tx":                      "--store is not for tx: ",
		"tx migrate":              "--store is not for tx migrate: the log is in the database of --db",
		"tx ls":                   "--store is not for tx ls: ",
		"tx show pawl-1-2-3":      "--store is not for tx show: ",
		"tx recover --resource s": "--store is not for tx recover: ",
		"tx resolve pawl-1-2-3 --abort --reason x": "--store is not for tx resolve: ",
		"tx agent --name a":                        "--store is not for tx agent: ",
		"tx trust a":                               "--store is not for tx trust: ",
	} {
		_, stderr := want(t, 64, "redis://127.0.0.1:1", append(strings.Fields(line), "--store", "sqlite:x")...)
		complaint(t, stderr, says)
	}
	want(t, 0, "redis://127.0.0.1:1", "id", "explain", "1") // a machine may have the variable for other verbs
	_, stderr := want(t, 64, "redis://127.0.0.1:1", "outbox", "relay", "--store", "sqlite:x", "--db", "sqlite:/no/such")
	if strings.Contains(stderr, "--store") {
		t.Error(stderr)
	}
}
