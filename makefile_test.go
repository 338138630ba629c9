package pawl_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// recipe returns the commands of a target of the Makefile.
func recipe(t *testing.T, target string) []string {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n"+target+":")
	_, rest, _ = strings.Cut(rest, "\n")
	rest, _, _ = strings.Cut(rest, "\n\n")
	if !found {
		t.Fatalf("the Makefile has no target %s", target)
	}
	return strings.Split(rest, "\n")
}

// TestAllParts: a part that fails does not hide those after it.
func TestAllParts(t *testing.T) {
	for _, target := range []string{"test", "soak", "bench"} {
		commands := recipe(t, target)
		last := len(commands) - 1
		if commands[0] != "\tfailed=0; \\" || commands[last] != "\texit $$failed" {
			t.Errorf("make %s does not end with the failures of all its parts", target)
			continue
		}
		for _, command := range commands[1:last] {
			if !strings.HasSuffix(command, " || failed=1; \\") {
				t.Errorf("make %s stops when this part fails: %s", target, command)
			}
		}
	}
}

var (
	chosen    = regexp.MustCompile(`-(run|bench) '?([^' ]+)'?`)
	packages  = regexp.MustCompile(`\./[\w/.]+`)
	variables = regexp.MustCompile(`(?m)^(\w+) := (.*)$`)
	topLevel  = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
)

// TestPatterns: each pattern of tests or benchmarks matches some in each of its packages, and a name that matches has each of
// its words. Else a test was renamed, and nothing runs.
func TestPatterns(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string][]string)
	for _, f := range goFiles(t) {
		for _, name := range topLevel.FindAllStringSubmatch(string(f.text), -1) {
			names["./"+f.pkg] = append(names["./"+f.pkg], name[1])
		}
	}
	n := 0
	for _, command := range slices.Concat(recipe(t, "soak"), recipe(t, "bench")) {
		choice := chosen.FindAllStringSubmatch(command, -1)
		if len(choice) == 0 || !packages.MatchString(command) {
			continue
		}
		n++
		kind, pattern := choice[len(choice)-1][1], choice[len(choice)-1][2]
		for _, v := range variables.FindAllSubmatch(makefile, -1) {
			pattern = strings.ReplaceAll(pattern, "$("+string(v[1])+")", string(v[2]))
		}
		pattern, _, _ = strings.Cut(strings.ReplaceAll(pattern, "$$", "$"), "/")
		matches := regexp.MustCompile(pattern)
		var all []string
		for _, pkg := range packages.FindAllString(command, -1) {
			before := len(all)
			for _, name := range names[pkg] {
				if matches.MatchString(name) && strings.HasPrefix(name, "Bench") == (kind == "bench") {
					all = append(all, name)
				}
			}
			if len(all) == before {
				t.Errorf("-%s %s chooses nothing of %s", kind, pattern, pkg)
			}
		}
		for _, word := range regexp.MustCompile(`\w+`).FindAllString(pattern, -1) {
			if !strings.Contains(strings.Join(all, " "), word) {
				t.Errorf("-%s %s: nothing that is chosen has %s in its name", kind, pattern, word)
			}
		}
	}
	if n < 9 {
		t.Errorf("only %d patterns are found", n)
	}
}

// TestSoak: `make soak` has each package whose tests do more with PAWL_TEST_SOAK.
func TestSoak(t *testing.T) {
	var soaked []string
	for _, command := range recipe(t, "soak") {
		if strings.HasPrefix(command, "\tPAWL_TEST_SOAK=1 ") {
			soaked = append(soaked, packages.FindAllString(command, -1)...)
		}
	}
	n := 0
	for _, f := range goFiles(t) {
		if !f.test || f.name == "makefile_test.go" || !strings.Contains(string(f.text), `"PAWL_TEST_SOAK"`) {
			continue
		}
		n++
		if !slices.ContainsFunc(soaked, func(arg string) bool {
			folder, below := strings.CutSuffix(arg[2:], "/...")
			return f.pkg == folder || below && strings.HasPrefix(f.pkg, folder+"/")
		}) {
			t.Errorf("%s does more in a soak, and make soak does not run its package", f.name)
		}
	}
	if n < 19 {
		t.Errorf("only %d files with a soak are found", n)
	}
}

// startsServers matches the program of a server, or of the means to set it up, that a package starts by itself.
var startsServers = regexp.MustCompile(`"(initdb|mariadbd|nats-server|redis-server|etcd-server|rabbitmq-server|pgbouncer)"`)

// TestQuick: tests that need a server import internal/testservers, because `make test-quick` leaves such packages
// out, and no others.
func TestQuick(t *testing.T) {
	starts, marked := make(map[string]bool), make(map[string]bool)
	for _, f := range goFiles(t) {
		if f.name == "makefile_test.go" {
			continue
		}
		for _, spec := range f.ast.Imports {
			ours, _ := cutModule(strings.Trim(spec.Path.Value, `"`))
			marked[f.pkg] = marked[f.pkg] || f.test && ours == "internal/testservers"
			starts[f.pkg] = starts[f.pkg] || f.test && ours == "internal/sqltest"
		}
		starts[f.pkg] = starts[f.pkg] || startsServers.Match(f.text)
	}
	delete(starts, "internal/testservers") // whose name is enough
	n := 0
	for pkg := range starts {
		if starts[pkg] && !marked[pkg] {
			t.Errorf("the tests of %s start servers, and do not import internal/testservers", pkg)
		}
		if starts[pkg] {
			n++
		}
	}
	if n < 2 {
		t.Errorf("only %d packages that start servers are found", n)
	}
}
