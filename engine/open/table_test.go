package open

import (
	"flag"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of schemes into docs/urls.md")

const (
	storesFile = "../../docs/urls.md"
	begin      = "<!-- schemes -->\n"
	end        = "<!-- /schemes -->\n"
)

// table says which URL takes which parameters.
func table() string {
	var b strings.Builder
	b.WriteString("| URL | parameters |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(schemes)) {
		s := schemes[name]
		params := "none"
		if all := s.allowed(); len(all) > 0 {
			params = "`" + strings.Join(all, "`, `") + "`"
		}
		b.WriteString("| `" + s.form + "` | " + params + " |\n")
	}
	return b.String()
}

// TestSchemesAreDocumented: the table in docs/urls.md equals the table of the code.
func TestSchemesAreDocumented(t *testing.T) {
	text, err := os.ReadFile(storesFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	is, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the table: %s ... %s", storesFile, begin, end)
	}
	if want := table(); is != want {
		if !*update {
			t.Fatalf("the table in %s is not what open takes (go test ./engine/open -run Documented -update writes it):\n%s", storesFile, want)
		}
		if err := os.WriteFile(storesFile, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSchemesAreInTheDoc: the documentation of the package names every scheme and parameter.
func TestSchemesAreInTheDoc(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "open.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	doc := file.Doc.Text()
	words := strings.FieldsFunc(doc, func(r rune) bool { return strings.ContainsRune(" \t\n,;:=", r) })
	for name, s := range schemes {
		if !strings.Contains(doc, "\t"+s.form) {
			t.Errorf("the package documentation does not say %s", s.form)
		}
		for _, param := range s.allowed() {
			if !slices.Contains(words, param) {
				t.Errorf("%s: the package documentation does not say %q", name, param)
			}
		}
	}
}
