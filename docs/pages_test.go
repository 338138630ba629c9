package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are all Markdown files of the module, from the root of the module.
func documents(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "*.md", "design/*.md", "stores/*.md", "recipes/*.md", "../bench/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		names = append(names, found...)
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTablesHaveNoHoles: every row of a table has all its cells.
func TestTablesHaveNoHoles(t *testing.T) {
	rows := 0
	for _, name := range documents(t) {
		columns := 0
		for n, line := range strings.Split(read(t, name), "\n") {
			if !strings.HasPrefix(line, "|") {
				columns = 0
				continue
			}
			rows++
			cells := strings.Split(strings.Trim(line, "|"), "|")
			head := columns == 0
			if head {
				columns = len(cells)
			}
			if len(cells) != columns {
				t.Errorf("%s:%d: %d cells in a table of %d columns", name, n+1, len(cells), columns)
			}
			for _, cell := range cells[1:] {
				if text := strings.TrimSpace(cell); !head && (text == "" || text == "?" || strings.EqualFold(text, "TODO")) {
					t.Errorf("%s:%d: a cell is empty", name, n+1)
				}
			}
		}
	}
	if rows == 0 {
		t.Error("no page has a table")
	}
}

// verbs are what each page of a store says about each way to use that store.
var verbs = []string{"Open", "Enter", "Await", "Leave", "Evict", "Renew", "Close", "List",
	"Show", "Resize", "Get", "Put", "Watch", "ListValues", "Wake-up", "Unasked look", "End of a dead session", "Token", "Barging",
	"Repeated request", "Restart of the store"}

var verbItem = regexp.MustCompile(`(?m)^- \*\*([^*]+)\*\*: (\S.*)$`)

// TestEveryVerbOnEveryStore: what a store does about the seam is said for every verb.
func TestEveryVerbOnEveryStore(t *testing.T) {
	lists := map[string]int{"postgresql.md": 2, "mariadb.md": 2}
	stores, err := filepath.Glob("stores/*.md")
	if err != nil || len(stores) < 8 {
		t.Fatalf("%d pages of stores, %v", len(stores), err)
	}
	for _, name := range stores {
		sections := strings.Split(read(t, name), "\n## Every verb")[1:]
		if want := max(1, lists[filepath.Base(name)]); len(sections) != want {
			t.Errorf("%s has %d lists of verbs, not %d", name, len(sections), want)
		}
		for _, section := range sections {
			section, _, _ = strings.Cut(section, "\n## ")
			var said []string
			for _, item := range verbItem.FindAllStringSubmatch(section, -1) {
				said = append(said, item[1])
			}
			if !slices.Equal(said, verbs) {
				t.Errorf("%s: the list of verbs is\n%q, not\n%q", name, said, verbs)
			}
		}
	}
}

var (
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	linkLine = regexp.MustCompile(`(?m)^\[[^\]]+\]: (\S+)$`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unslug   = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
)

// anchors are those of the headings of a page, as GitHub makes them.
func anchors(text string) (all []string) {
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}

// TestLinksResolve: the file of a relative link is there, and so is the heading of its anchor.
func TestLinksResolve(t *testing.T) {
	links := 0
	for _, name := range documents(t) {
		text := fenced.ReplaceAllString(read(t, name), "")
		found := append(link.FindAllStringSubmatch(text, -1), linkLine.FindAllStringSubmatch(text, -1)...)
		for _, l := range found {
			if strings.Contains(l[1], "://") {
				continue
			}
			links++
			file, anchor, hasAnchor := strings.Cut(l[1], "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s: %v", name, l[1], err)
				continue
			}
			if hasAnchor && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: the link %s: the page has no such heading", name, l[1])
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d relative links were found", links)
	}
}

// TestSaidOnce: no two paragraphs of a section begin with the same words, as they do when two
// versions of one text were merged.
func TestSaidOnce(t *testing.T) {
	lead := regexp.MustCompile(`(?m)^(?:- )?\*\*[^*]+\*\*`)
	for _, name := range documents(t) {
		if filepath.Base(name) == "CHANGELOG.md" {
			continue
		}
		for _, section := range strings.Split(read(t, name), "\n## ") {
			leads := lead.FindAllString(section, -1)
			slices.Sort(leads)
			for i := 1; i < len(leads); i++ {
				if leads[i] == leads[i-1] {
					t.Errorf("%s says twice: %s", name, leads[i])
				}
			}
		}
	}
}

// TestEveryPageIsLinked: a reader who starts at the README can come to every page.
func TestEveryPageIsLinked(t *testing.T) {
	seen := map[string]bool{} // by absolute path
	var visit func(string)
	visit = func(name string) {
		if seen[absolute(t, name)] || filepath.Ext(name) != ".md" {
			return
		}
		seen[absolute(t, name)] = true
		for _, l := range link.FindAllStringSubmatch(read(t, name), -1) {
			file, _, _ := strings.Cut(l[1], "#")
			target := filepath.Join(filepath.Dir(name), file)
			if _, err := os.Stat(target); err == nil && file != "" && !strings.Contains(l[1], "://") {
				visit(target)
			}
		}
	}
	visit("../README.md")
	for _, name := range documents(t) {
		if !seen[absolute(t, name)] {
			t.Errorf("no link leads from the README to %s", name)
		}
	}
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadmeIsShort: a newcomer reads it to the end.
func TestReadmeIsShort(t *testing.T) {
	for _, name := range []string{"../README.md", "../README.zh.md"} {
		if n := strings.Count(read(t, name), "\n"); n > 200 {
			t.Errorf("%s has %d lines, more than 200", name, n)
		}
	}
}
