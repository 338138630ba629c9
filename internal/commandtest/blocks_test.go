package commandtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// block is the text of one ```sh block of a document.
type block struct {
	page  string // slash-separated, from the root of the module
	line  int    // of its first command
	lines []string
}

// pages are all documents with commands.
func pages(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "bench/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".md") {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// aCommand is a line that shows how to run pawl.
var aCommand = regexp.MustCompile(`^\s*(\$ )?(pawl (run|slot|elect|join|members|proxy|ls|show|break|resize|id|idem|outbox|tx|store) |go run \./cmd/pawl)`)

// blocks are those of all pages. A command of pawl in a block of another kind fails the test,
// because it would not be run.
func blocks(t *testing.T) (all []block) {
	t.Helper()
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		page, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		page = filepath.ToSlash(page)
		fence, b := "", block{}
		for n, line := range strings.Split(string(text), "\n") {
			mark, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
			switch {
			case isFence && fence == "":
				fence, b = "```"+mark, block{page: page, line: n + 2}
			case isFence:
				if fence == "```sh" {
					all = append(all, b)
				}
				fence = ""
			case fence == "```sh":
				b.lines = append(b.lines, line)
			case fence != "" && aCommand.MatchString(line):
				t.Errorf("%s:%d: a command of pawl in a block %q, which is not run: make it ```sh", page, n+1, fence)
			}
		}
		if fence != "" {
			t.Errorf("%s: a block is not closed", page)
		}
	}
	return all
}

// notRun are the commands that this test cannot run, by how they begin, each with its reason.
var notRun = []struct{ begins, why string }{
	{"make ", "it runs all tests or installs servers; TestMakeTargets looks whether the target exists"},
	{"go install ", "it needs a release, and writes into the user's folder; the test builds the same program"},
	{"go get ", "it needs a release and changes the go.mod of the caller"},
	{"go test ", "it is a test or a benchmark itself; TestGoArguments looks whether its package exists"},
	{"go run ./examples/", "the tests of the example run it and compare its output; TestGoArguments looks whether it exists"},
	{"pawl tx agent ", "it serves until it is stopped; TestTx_agent of the command starts three agents"},
	{"curl http://127.0.0.1:765", "it asks these agents; TestTx_agent sends such requests"},
	{"etcdctl ", "it sets up users of an etcd; TestEtcdUser of internal/testservers does the same by etcd's interface"},
}

func excluded(command string) bool {
	for _, n := range notRun {
		if strings.HasPrefix(command, n.begins) {
			return true
		}
	}
	return false
}

// commands returns the commands of a block. A command goes on after a backslash, and within quotation marks.
func (b block) commands() (all []string) {
	open := false
	for _, line := range b.lines {
		if open {
			all[len(all)-1] += "\n" + line
		} else {
			all = append(all, line)
		}
		last := all[len(all)-1]
		open = strings.HasSuffix(line, "\\") || strings.Count(last, "'")%2 == 1
	}
	return all
}

// TestMakeTargets: a target that a document names is in the Makefile.
func TestMakeTargets(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks(t) {
		for _, line := range b.lines {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "make" && !strings.Contains(string(makefile), "\n"+f[1]+":") {
				t.Errorf("%s: the Makefile has no target %s", b.page, f[1])
			}
		}
	}
}

// TestGoArguments: a package that a document tests, or an example that it runs, is there.
func TestGoArguments(t *testing.T) {
	for _, b := range blocks(t) {
		for _, line := range b.lines {
			if !strings.HasPrefix(line, "go test ") && !strings.HasPrefix(line, "go run ./examples/") {
				continue
			}
			for _, f := range strings.Fields(line) {
				if !strings.HasPrefix(f, "./") {
					continue
				}
				if _, err := os.Stat(filepath.Join(root, f)); err != nil {
					t.Errorf("%s: %v", b.page, err)
				}
			}
		}
	}
}
