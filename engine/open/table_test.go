package open

import (
	"flag"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
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

var parameterName = regexp.MustCompile("`([a-z-]+)`")

// TestParametersAreExplained: the table of parameters in docs/urls.md has each parameter of a URL once, and no other.
func TestParametersAreExplained(t *testing.T) {
	text, err := os.ReadFile(storesFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "| parameter | meaning |\n|---|---|\n")
	rows, _, _ := strings.Cut(rest, "\n\n")
	var explained []string
	for _, row := range strings.Split(rows, "\n") {
		names, _, _ := strings.Cut(row, " | ")
		for _, name := range parameterName.FindAllStringSubmatch(names, -1) {
			explained = append(explained, name[1])
		}
	}
	slices.Sort(explained)
	all := make(map[string]bool)
	for _, s := range schemes {
		for _, param := range s.allowed() {
			all[param] = true
		}
	}
	if want := slices.Sorted(maps.Keys(all)); !slices.Equal(explained, want) {
		t.Errorf("%s explains the parameters\n%q, not\n%q", storesFile, explained, want)
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
