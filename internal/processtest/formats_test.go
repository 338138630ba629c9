package processtest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// apart turns the URL of a store into that of a place in the store that nobody has used.
var apart = map[string]func(url string) string{
	"sqlite":   func(url string) string { return url + strings.ToLower(rand.Text()) },
	"cluster":  func(url string) string { return url + "?prefix=" + rand.Text() + ":" },
	"redis":    func(url string) string { return url + "?prefix=" + rand.Text() + ":" },
	"redlock":  func(url string) string { return url + "?prefix=" + rand.Text() + ":" },
	"etcd":     func(url string) string { return url + "?prefix=" + rand.Text() + "/" },
	"postgres": func(url string) string { return url + "?schema=f" + strings.ToLower(rand.Text()) },
	"mariadb":  func(url string) string { return url + "?prefix=f" + strings.ToLower(rand.Text())[:8] },

	"postgres in row mode": func(url string) string { return url + "?mode=row&schema=f" + strings.ToLower(rand.Text()) },
	"mariadb in row mode":  func(url string) string { return url + "?mode=row&prefix=f" + strings.ToLower(rand.Text())[:8] },

	"nats":      func(url string) string { return url + "?bucket=" + rand.Text() },
	"zookeeper": func(url string) string { return strings.Replace(url, "?", "/"+rand.Text()+"?", 1) },
}

// build builds the command, with these flags for the linker.
func build(t *testing.T, name, flags string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-ldflags", flags, "-o", program, "github.com/pawl-go/pawl/cmd/pawl")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return program
}

// goesOn are the stores that a build of another format takes over after a restart grace. No client
// of the earlier format may live there.
var goesOn = map[string]bool{"redis": true, "redlock": true}

// TestFormats: two builds have stores of different formats. The second build that comes to a store
// is refused, and the error names both formats. That build is granted nothing beside the first.
func TestFormats(t *testing.T) {
	const other = "3"
	if engine.Format() == other {
		t.Fatalf("format %s needs another one", other)
	}
	builds := []string{
		build(t, "pawl", ""),
		build(t, "pawl-other", "-X github.com/pawl-go/pawl/engine.format="+other),
	}
	all := maps.Clone(stores)
	maps.Copy(all, moreStores)
	all["cluster"] = func(t *testing.T) string {
		var addrs []string
		for _, node := range testservers.RedisCluster(t) {
			addrs = append(addrs, node.Addr)
		}
		return "redis+cluster://" + strings.Join(addrs, ",")
	}
	all["redlock"] = func(t *testing.T) string {
		var addrs []string
		for range 3 {
			addrs = append(addrs, testservers.Redis(t).Addr)
		}
		return "redlock://" + strings.Join(addrs, ",")
	}
	all["postgres in row mode"], all["mariadb in row mode"] = all["postgres"], all["mariadb"]
	for kind, store := range all {
		t.Run(kind, func(t *testing.T) {
			url := store(t)
			for i := range builds {
				place := apart[kind](url)
				if goesOn[kind] { // and would keep the first build waiting, too
					if text, err := exec.CommandContext(t.Context(), builds[i], "store", "init", "--store", place).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, text)
					}
				}
				refused := refusesTheSecond(t, place, builds[i], builds[1-i])
				if !goesOn[kind] { // also when the first build has gone
					refused("deploy")
				}
			}
		})
	}
}

// refusesTheSecond returns a function that fails unless the second build is refused a lock.
func refusesTheSecond(t *testing.T, url, first, second string) (refused func(name string)) {
	t.Helper()
	t.Setenv("PAWL_STORE", url)
	holder := exec.CommandContext(t.Context(), first, "run", "deploy", "--", "sh", "-c", "echo held; cat")
	holder.Stderr = os.Stderr
	input, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "held\n" {
		t.Fatalf("the first build: %q, %v", line, err)
	}
	refused = func(name string) {
		t.Helper()
		granted, text, err := echo(t, second, name)
		if granted || err == nil {
			t.Errorf("%s was granted to the second build", name)
		}
		namesBoth(t, text)
	}
	refused("deploy")
	refused("another")
	for _, args := range [][]string{{"show", "deploy"}, {"ls"}, {"ls", "nobody"}, {"break", "--yes", "deploy"}} {
		text, err := exec.CommandContext(t.Context(), second, args...).CombinedOutput()
		if err == nil {
			t.Errorf("the second build did %q: %s", args, text)
		}
		namesBoth(t, string(text))
	}
	if granted, text, err := echo(t, first, "another"); !granted || err != nil {
		t.Errorf("another lock for the first build: %v: %s", err, text)
	}
	input.Close()
	if err := holder.Wait(); err != nil {
		t.Errorf("the first build: %v", err)
	}
	return refused
}

// namesBoth fails the test unless a refusal names both formats.
func namesBoth(t *testing.T, text string) {
	t.Helper()
	for _, format := range []string{engine.Format(), "3"} {
		if !strings.Contains(text, "format "+format) {
			t.Errorf("the second build says %q, without format %s", text, format)
		}
	}
}

// echo runs a command under a lock, and reports whether it ran.
func echo(t *testing.T, program, name string) (ran bool, text string, err error) {
	t.Helper()
	var errs bytes.Buffer
	run := exec.CommandContext(t.Context(), program, "run", "--wait", "20s", name, "--", "echo", "ran")
	run.Stderr = &errs
	began := time.Now()
	output, err := run.Output()
	return strings.Contains(string(output), "ran"), fmt.Sprintf("%s (after %v)", errs.String(), time.Since(began).Round(time.Millisecond)), err
}
