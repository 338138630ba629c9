package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const pawl = "github.com/pawl-go/pawl"

// recipeImports are the packages that fragments of recipes may name.
var recipeImports = []string{"context", "database/sql", "errors", "fmt", "iter", "net/http", "net/netip", "strings", "time", "github.com/redis/rueidis",
	"google.golang.org/grpc", "google.golang.org/grpc/credentials/insecure",
	pawl, pawl + "/dialect", pawl + "/dtx", pawl + "/fence/sqlfence", pawl + "/group", pawl + "/lb", pawl + "/lb/grpclb", pawl + "/lb/httplb",
	pawl + "/id", pawl + "/id/readable", pawl + "/id/redisid",
	pawl + "/id/segment", pawl + "/id/sequence", pawl + "/id/snowflake", pawl + "/id/sqlmark", pawl + "/id/uuids",
	pawl + "/idem", pawl + "/idem/httpidem", pawl + "/idem/sqlidem", pawl + "/idem/sqlupdate", pawl + "/idem/state", pawl + "/idem/stock",
	pawl + "/dtx/threephase", pawl + "/inbox", pawl + "/outbox", pawl + "/outbox/redisstream"}

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// program is a file with a fragment in a function. The page says which names are there.
func program(n int, fragment string) string {
	body := fmt.Sprintf("func fragment%d(ctx context.Context, client *pawl.Client, db, spare *sql.DB, redis rueidis.Client) error {\n%s\nreturn nil\n}\n", n, fragment)
	text := "package recipes\n"
	for _, path := range recipeImports {
		if regexp.MustCompile(`\b` + filepath.Base(path) + `\.`).MatchString(remark.ReplaceAllString(body, "")) {
			text += fmt.Sprintf("import %q\n", path)
		}
	}
	return text + body
}

// TestRecipesCompile compiles the Go of the recipes as files that exist for the compiler only.
// TestTranslations holds the Go of the Chinese pages to it.
func TestRecipesCompile(t *testing.T) {
	pages, err := filepath.Glob("recipes/*.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, replace, n := t.TempDir(), map[string]string{}, 0
	for _, page := range pages {
		if strings.HasSuffix(page, ".zh.md") {
			continue
		}
		for _, block := range goBlock.FindAllStringSubmatch(read(t, page), -1) {
			n++
			if is, err := format.Source([]byte(block[1])); err != nil || string(is) != block[1] {
				t.Errorf("%s: gofmt changes a fragment: %v\n%s", page, err, block[1])
			}
			name := fmt.Sprintf("fragment%d.go", n)
			file := filepath.Join(dir, name)
			if err := os.WriteFile(file, []byte(program(n, block[1])), 0o600); err != nil {
				t.Fatal(err)
			}
			replace[absolute(t, filepath.Join("compiled", name))] = file
		}
	}
	if n < 6 {
		t.Errorf("only %d fragments were found", n)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "go", "build", "-overlay", file, "./compiled").CombinedOutput(); err != nil {
		t.Errorf("the fragments of the recipes: %v\n%s", err, out)
	}
}
