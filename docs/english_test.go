package docs_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// The rule of the house for prose: a sentence makes one claim, in 25 words at most, and names
// its actor. A sentence without an actor hides the waiter, the holder or the caller.

const mostWords = 25

// bare are the forms in which a sentence hides its actor.
var bare = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bwhoever\b`), "name the actor"},
	{regexp.MustCompile(`(?i)(^|[.;:,(]\s*|\b(and|or|by|of|to|for|from|that|than|as|if|tells?|told|asks?|lets?|only|beside|with) )who\b`), "name the actor"},
	{regexp.MustCompile(`(?i)\bwho (waits|holds|asks|comes|reads|writes)\b`), "the waiter, the holder, the client"},
	{regexp.MustCompile(`(?i)\b(the |any|no )?one (that|which|who)\b`), "name the thing"},
	{regexp.MustCompile(`(?i)\b(those|these) (that|which|who)\b`), "name the things"},
	{regexp.MustCompile(`(?i)\bwhat (is|was|are|were|has|have|had|cannot|can|does|did|must|may|needs|makes|runs|comes|wakes|ends|stands|nobody|somebody|others)\b`), "name the thing"},
	{regexp.MustCompile(`(^|[.;:] )What \w+`), "name the thing"},
	{regexp.MustCompile(`(?i), for \w+`), "because"},
}

var allowed = regexp.MustCompile(`(?i), for (example|instance)\b`)

// faults returns the faults of one sentence.
func faults(sentence string) (all []string) {
	words := 0
	for _, word := range strings.Fields(sentence) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			words++
		}
	}
	if words > mostWords {
		all = append(all, "more than 25 words")
	}
	plain := allowed.ReplaceAllString(sentence, "")
	for _, b := range bare {
		if m := b.pattern.FindString(plain); m != "" {
			all = append(all, "it says "+strings.TrimSpace(m)+": "+b.instead)
		}
	}
	return all
}

var (
	comment  = regexp.MustCompile(`(?s)<!--.*?-->`)
	listItem = regexp.MustCompile(`^([-*]|\d+\.)\s+`)
	codeSpan = regexp.MustCompile("`[^`]*`")
	linked   = regexp.MustCompile(`\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])?`)
	endOf    = regexp.MustCompile(`[.!?]["”)*]*\s+`)
)

// sentences returns those of a Markdown text, without headings, code, tables and the targets of
// links.
func sentences(text string) (all []string) {
	text = comment.ReplaceAllString(fenced.ReplaceAllString(text, "\n"), "\n")
	var paragraph []string
	end := func() {
		p := codeSpan.ReplaceAllString(strings.Join(paragraph, " "), "X")
		p = strings.ReplaceAll(linked.ReplaceAllString(p, "$1"), "*", "")
		paragraph = nil
		for {
			at := endOf.FindStringIndex(p)
			if at == nil {
				break
			}
			all, p = append(all, strings.TrimSpace(p[:at[1]])), p[at[1]:]
		}
		if p != "" {
			all = append(all, p)
		}
	}
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		isProse := line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "|") && !linkLine.MatchString(line)
		if !isProse || listItem.MatchString(line) {
			end()
		}
		if isProse {
			paragraph = append(paragraph, listItem.ReplaceAllString(line, ""))
		}
	}
	end()
	return all
}

// TestEnglish holds the documents to the rule; the changelog is a record of its time, and
// Chinese has other words.
func TestEnglish(t *testing.T) {
	n := 0
	for _, name := range documents(t) {
		if filepath.Base(name) == "CHANGELOG.md" || strings.HasSuffix(name, ".zh.md") {
			continue
		}
		for _, s := range sentences(read(t, name)) {
			n++
			for _, fault := range faults(s) {
				t.Errorf("%s: %s:\n\t%s", name, fault, s)
			}
		}
	}
	if n < 1000 {
		t.Errorf("only %d sentences were found", n)
	}
}

// TestEnglishFinds: the rule itself is tested, by sentences that were in these documents.
func TestEnglishFinds(t *testing.T) {
	for _, bad := range []string{
		"Who waits is alive or is skipped.",
		"What cannot check tokens should be able to bear two holders for a moment.",
		"A node is told, for it may be away.",
		"The next one that waits is woken by those that leave.",
		"The stored number counts in place of what clients declare, and each of them reads that number once in a third of its TTL, or later.",
	} {
		if len(faults(bad)) == 0 {
			t.Errorf("nothing is wrong with: %s", bad)
		}
	}
	for _, good := range []string{
		"Dead waiters lose their place.",
		"CMD does not outlive the lock.",
		"The store keeps the name of the operator who broke it, for example.",
	} {
		if found := faults(good); len(found) > 0 {
			t.Errorf("%s: %q", good, found)
		}
	}
}

// englishGo are the folders whose comments are held to the rule as well, with their subfolders.
// A folder is added when its comments have been mended.
var englishGo = []string{"fence", "dialect", "id", "idem", "work", "internal/idtest", "engine/queue", "observe", "docs",
	"internal/commandtest", "internal/fencetest", "engine/memengine", "internal/queuetest", "internal/primitivetest", "examples"}

// indented is code in a doc comment.
var indented = regexp.MustCompile(`(?m)^\t.*$`)

// TestEnglishGo holds all comments of these folders.
func TestEnglishGo(t *testing.T) {
	for _, folder := range englishGo {
		for _, name := range goFiles(t, filepath.Join("..", folder)) {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range file.Comments {
				for _, s := range sentences(indented.ReplaceAllString(group.Text(), "")) {
					for _, fault := range faults(s) {
						t.Errorf("%s: %s:\n\t%s", fset.Position(group.Pos()), fault, s)
					}
				}
			}
		}
	}
}

// goFiles are those of a folder and its subfolders.
func goFiles(t *testing.T, folder string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".go" {
			names = append(names, name)
		}
		return err
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v, %v", folder, names, err)
	}
	return names
}
