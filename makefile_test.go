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

// TestSoak: `make soak` has each package whose tests do more with PAWL_TEST_SOAK.
func TestSoak(t *testing.T) {
	var soaked []string
	for _, command := range recipe(t, "soak") {
		if strings.HasPrefix(command, "\tPAWL_TEST_SOAK=1 ") {
			soaked = append(soaked, regexp.MustCompile(`\./[\w/.]+`).FindAllString(command, -1)...)
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
