//go:build unix

package dtx_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutants are mistakes in the code of this package, and the tests that find them.
var mutants = []struct {
	name  string
	edits [][3]string // file, right text, wrong text
	find  string      // as -run has it
}{
	{"no fence", [][3]string{{"record.go", `" WHERE fenced = 0 AND id = ").Value(id.coordinator)`, `" WHERE id = ").Value(id.coordinator)`}},
		"TestDatabases/PostgreSQL_and_PostgreSQL/crashes"},
	{"NOTA taken for finished", [][3]string{{"resource.go", "case r.dialect == dialect.PostgreSQL:\n\t\treturn errGone", "case true:\n\t\treturn errGone"}},
		"TestOwned"},
	{"presumed commit", [][3]string{{"recover.go", "protocol.Judge(p.row(b.ID), decided)", "protocol.Judge(p.row(b.ID), decided || true)"}},
		"TestDatabases/PostgreSQL_and_PostgreSQL/crashes"},
	{"list after log", [][3]string{{"recover.go", "all, away := p.list(ctx)\n\tp.last = all\n\tsilent, err := p.read(ctx)\n", "silent, err := p.read(ctx)\n\tall, away := p.list(ctx)\n\tp.last = all\n"}},
		"TestDatabases/PostgreSQL_and_PostgreSQL/beside_recovery"},
	{"a pooled connection after PREPARE", [][3]string{
		{"branch.go", "b.voted = true\n", "b.voted = true\n\t\tb.release(true)\n"},
		{"branch.go", "if clean && reset != \"\" {", "if clean = true; false {"},
	}, "TestDatabases/MariaDB_and_MariaDB/beside_recovery"},
	{"a lost decision is over", [][3]string{{"recover.go", "protocol.Own(p.open[id], retired, row)", "protocol.Own(p.open[id], retired && false, row)"}},
		"TestDatabases/late_commit"},
	{"a branch in doubt is rolled back", [][3]string{{"branch.go", "b.voted = true", "b.voted = false"}},
		"TestDatabases/late_commit_beside_MariaDB"},
}

// TestMutants: each mistake is found by the test that is named beside it. A short run only looks for the text that is to be changed.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			texts := make(map[string]string)
			for _, edit := range m.edits {
				if texts[edit[0]] == "" {
					text, err := os.ReadFile(edit[0])
					if err != nil {
						t.Fatal(err)
					}
					texts[edit[0]] = string(text)
				}
				if n := strings.Count(texts[edit[0]], edit[1]); n != 1 {
					t.Fatalf("%s has the text %d times: %s", edit[0], n, edit[1])
				}
				texts[edit[0]] = strings.Replace(texts[edit[0]], edit[1], edit[2], 1)
			}
			if os.Getenv("PAWL_TEST_SOAK") == "" {
				return
			}
			out, err := testWith(t, texts, m.find)
			if said := string(out); err == nil || !strings.Contains(said, "--- FAIL: Test") {
				t.Errorf("%s does not find the mistake: %v\n%s", m.find, err, said)
			}
		})
	}
}

// testWith runs tests of this package with other texts of its files.
func testWith(t *testing.T, texts map[string]string, run string) ([]byte, error) {
	t.Helper()
	dir, replace := t.TempDir(), make(map[string]string)
	for file, text := range texts {
		whole, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		replace[whole] = filepath.Join(dir, file)
		if err := os.WriteFile(replace[whole], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-overlay", name, "-count", "1", "-run", run, ".")
	cmd.Env = append(os.Environ(), "PAWL_TEST_SOAK=")
	return cmd.CombinedOutput()
}
