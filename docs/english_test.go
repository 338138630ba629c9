package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// The rule of the house for prose: a sentence makes one claim, in 25 words at most, and names
// its actor. A sentence without an actor hides the waiter, the holder or the caller.

const mostWords = 25

// bare are the forms in which a sentence hides its actor, or leaves out the standard verb.
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
	{regexp.MustCompile(`(?i)\b(bears|(to|can|must|may|not) bear)\b`), "tolerate"},
	{regexp.MustCompile(`(?i)\bcounts? in place of\b`), "override"},
	{regexp.MustCompile(`^["“(]?(It|Its|They|Their)\b`), "its noun stands in another sentence"},
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
		"The wait bears an outage.",
		"It is safe for concurrent use.",
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

// indented is code in a doc comment.
var indented = regexp.MustCompile(`(?m)^\t.*$`)

// TestEnglishGo holds the comments of the Go files, and the texts that they show to users.
func TestEnglishGo(t *testing.T) {
	comments, shown := 0, 0
	for _, name := range goFiles(t) {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		hold := func(at token.Pos, text string) (n int) {
			for _, s := range sentences(text) {
				n++
				for _, fault := range faults(s) {
					t.Errorf("%s: %s:\n\t%s", fset.Position(at), fault, s)
				}
			}
			return n
		}
		for _, group := range file.Comments {
			comments += hold(group.Pos(), indented.ReplaceAllString(group.Text(), ""))
		}
		for _, text := range shownTexts(file) {
			shown += hold(text.Pos(), table.ReplaceAllString(constant(text), ""))
		}
	}
	t.Logf("%d sentences of comments, and %d of texts for users", comments, shown)
	if comments < 5000 || shown < 600 {
		t.Errorf("only %d sentences of comments were found, and %d of texts for users", comments, shown)
	}
}

// TestEnglishScripts holds the comments of the scripts and routines that run inside stores.
func TestEnglishScripts(t *testing.T) {
	n := 0
	for _, name := range append(filesOf(t, ".lua"), filesOf(t, ".sql")...) {
		for _, comment := range scriptComments(read(t, name)) {
			for _, s := range sentences(comment) {
				n++
				for _, fault := range faults(s) {
					t.Errorf("%s: %s:\n\t%s", name, fault, s)
				}
			}
		}
	}
	if n < 300 {
		t.Errorf("only %d sentences of comments were found", n)
	}
}

var (
	// scriptComment is a comment of Lua or SQL. The first part is empty where the line has no code.
	scriptComment = regexp.MustCompile(`^(.*?)--(?: (.*))?$`)

	// templateComment is a comment of text/template.
	templateComment = regexp.MustCompile(`(?s)\{\{/\*(.*?)\*/\}\}`)
)

// scriptComments returns the comments of a script. Lines that follow one another, and have no code, are
// one comment.
func scriptComments(text string) (all []string) {
	var lines []string
	end := func() {
		all = append(all, strings.Join(lines, "\n"))
		lines = nil
	}
	for _, line := range strings.Split(text, "\n") {
		found := scriptComment.FindStringSubmatch(line)
		if found == nil || strings.TrimSpace(found[1]) != "" {
			end()
		}
		if found != nil {
			lines = append(lines, found[2])
		}
	}
	end()
	for _, found := range templateComment.FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// TestScriptComments: comments of all kinds are found, and no code is.
func TestScriptComments(t *testing.T) {
	text := strings.Join([]string{"-- Two lines", "-- are one.", "x = 1 -- beside code", "  -- below code", "y = 'a-b'", "{{/* of a template */}}"}, "\n")
	var found []string
	for _, c := range scriptComments(text) {
		if c != "" {
			found = append(found, c)
		}
	}
	if want := []string{"Two lines\nare one.", "beside code\nbelow code", " of a template "}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// goFiles are all Go files of the repository, and those of modules nested in it.
func goFiles(t *testing.T) []string { return filesOf(t, ".go") }

// filesOf are all files of the repository whose names end so.
func filesOf(t *testing.T, ext string) (names []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ext {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestShownTexts: the texts that users read are found.
func TestShownTexts(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
		const runHelp = "help"
		var verb = cobra.Command{Use: "no", Short: "short", Long: "long " + runHelp + "er"}
		var caps = engine.Caps{Lacks: map[engine.Feature]string{engine.FeatureOrder: "reason"}}
		func f() error {
			cmd.Flags().BoolVarP(&all, "no", "n", false, "flag")
			t.Errorf("no")
			return fmt.Errorf("error: %w", errors.New("cause"))
		}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, text := range shownTexts(file) {
		found = append(found, constant(text))
	}
	if want := []string{"help", "short", "long er", "reason", "flag", "error: %w", "cause"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

var (
	// shownFirst are the functions whose first text a user reads.
	shownFirst = regexp.MustCompile(`^(errors\.New|fmt\.Errorf|invalid|usageError|news)$`)

	// shownLast are the methods that define a flag, whose last text is its usage.
	shownLast = regexp.MustCompile(`^(Bool|Count|Duration|Float64|Int|Int64|String|Uint64)?(Array|Slice)?VarP?$`)

	// help are the names of help texts.
	help = regexp.MustCompile(`^([sS]hort|[lL]ong|\w+Help)$`)

	// table is an indented line of a help text.
	table = regexp.MustCompile(`(?m)^[ \t].*$`)
)

// shownTexts returns the texts of a file that its users read: errors, usages of flags, and the
// help of commands.
func shownTexts(file *ast.File) (texts []ast.Expr) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := called(n.Fun)
			switch _, method, _ := strings.Cut(name, "."); {
			case len(n.Args) > 0 && shownFirst.MatchString(name):
				texts = append(texts, n.Args[0])
			case len(n.Args) > 1 && shownLast.MatchString(method):
				texts = append(texts, n.Args[len(n.Args)-1])
			}
		case *ast.KeyValueExpr: // the help of a command, or the reason why an engine lacks something
			key, _ := n.Key.(*ast.Ident)
			lacks, _ := n.Key.(*ast.SelectorExpr)
			if key != nil && help.MatchString(key.Name) || lacks != nil && strings.HasPrefix(lacks.Sel.Name, "Feature") {
				texts = append(texts, n.Value)
			}
		case *ast.ValueSpec:
			if help.MatchString(n.Names[0].Name) {
				texts = append(texts, n.Values...)
			}
		}
		return true
	})
	return texts
}

// called is the name of a function, after that of its package, or of a method.
func called(fun ast.Expr) string {
	switch fun := fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		of, ok := fun.X.(*ast.Ident)
		if !ok {
			return "." + fun.Sel.Name
		}
		return of.Name + "." + fun.Sel.Name
	}
	return ""
}

// constant is the constant part of a text.
func constant(text ast.Expr) string {
	switch text := text.(type) {
	case *ast.BasicLit:
		if plain, err := strconv.Unquote(text.Value); err == nil {
			return plain
		}
	case *ast.BinaryExpr:
		return constant(text.X) + constant(text.Y)
	}
	return ""
}
