package commandtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
)

// program is the folder of the pawl that TestMain built.
var program string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pawl-commands-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir, "./cmd/pawl")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build ./cmd/pawl: %v\n%s", err, out)
		return 1
	}
	program = dir
	return testservers.Main(m)
}

// TestCommands runs every block of commands of every document.
func TestCommands(t *testing.T) {
	ran := make(map[string]int)
	for _, b := range blocks(t) {
		var script []string
		for _, command := range b.commands() {
			if !excluded(command) {
				script = append(script, command)
			}
		}
		if strings.TrimSpace(strings.Join(script, "")) == "" {
			continue
		}
		ran[b.page]++
		t.Run(fmt.Sprintf("%s:%d", b.page, b.line), func(t *testing.T) {
			t.Parallel()
			runBlock(t, strings.Join(script, "\n"))
		})
	}
	for _, page := range []string{"README.md", "README.zh.md", "docs/command.md", "docs/urls.md", "docs/stores/redis.md"} {
		if ran[page] == 0 {
			t.Errorf("%s shows no command that could be run", page)
		}
	}
}

// said is the text that an echo of a block prints.
var said = regexp.MustCompile(`-- echo "([^"]*)"`)

// runBlock runs the commands in a folder of their own, with a state of their own, and stops at
// the first that fails.
func runBlock(t *testing.T, script string) {
	home := t.TempDir()
	redirected := redirect(t, home, script)
	sh := exec.CommandContext(t.Context(), "sh", "-euc", redirected)
	sh.Dir = home
	sh.Env = append(os.Environ(), "PATH="+program+":"+os.Getenv("PATH"), "HOME="+home, "XDG_STATE_HOME="+home,
		"PAWL_STORE=sqlite:"+filepath.Join(home, "pawl.db"), "REDIS_PASSWORD="+password)
	out, err := sh.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, redirected, out)
	}
	for _, m := range said.FindAllStringSubmatch(script, -1) {
		if !strings.Contains(string(out), m[1]+"\n") {
			t.Errorf("CMD has not said %q:\n%s\n%s", m[1], redirected, out)
		}
	}
}

const password = "s3cret"

// redirect replaces the targets of the commands of a block. Private servers replace the
// addresses of servers, and files in home replace files of the system.
func redirect(t *testing.T, home, script string) string {
	t.Helper()
	write := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(home, name)
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("report.sh", "#!/bin/sh\necho a report\n", 0o755)
	var ca *testservers.CA
	if strings.Contains(script, "/etc/pawl/ca.pem") {
		ca = testservers.NewCA(t)
		script = strings.ReplaceAll(script, "/etc/pawl/ca.pem", ca.File)
	}
	for from, to := range map[string]string{
		"go run ./cmd/pawl":  "pawl",
		"/run/secrets/redis": write("password", password+"\n", 0o600),
		"/var/lib/pawl":      filepath.Join(home, "shared"),
		"-g deploy":          "-g " + strconv.Itoa(os.Getgid()),
	} {
		script = strings.ReplaceAll(script, from, to)
	}
	addrs := private(t, ca, script)
	return address.ReplaceAllStringFunc(script, func(m string) string {
		addr := addrs[strings.TrimPrefix(m, localhost)]
		if addr == "" {
			t.Errorf("nothing listens on %s: give groups a private server of that kind", m)
		}
		return addr
	})
}

const localhost = "127.0.0.1:"

// address is that of a server as documents write it.
var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)
