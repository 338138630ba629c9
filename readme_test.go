package pawl_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeExample: the program that each README shows runs as it is shown.
func TestReadmeExample(t *testing.T) {
	for _, page := range []string{"README.md", "README.zh.md"} {
		readme, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, shown, _ := strings.Cut(string(readme), "<!-- example -->\n```go\n")
		shown, _, found := strings.Cut(shown, "```\n<!-- /example -->")
		if !found {
			t.Fatalf("%s has no block between <!-- example --> and <!-- /example -->", page)
		}
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, []byte(shown), 0o600); err != nil {
			t.Fatal(err)
		}
		const want = "at work with token 1\n"
		if got, err := exec.CommandContext(t.Context(), "go", "run", file).CombinedOutput(); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s", page, err, got)
		}
		if out, err := exec.CommandContext(t.Context(), "gofmt", "-l", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: gofmt changes the program: %v\n%s", page, err, out)
		}
	}
}
