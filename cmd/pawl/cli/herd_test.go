//go:build unix

package cli

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Many runs of one name, with the TTL of the command, start at once on one file that does not exist yet. All run, and each needs
// at most three times the CPU that it needs among ten. The program is built as users build it,
// because under the race detector so many processes would take minutes.
func TestRun_herd_on_one_file(t *testing.T) {
	program := filepath.Join(t.TempDir(), "pawl")
	if text, err := exec.Command("go", "build", "-o", program, "github.com/pawl-go/pawl/cmd/pawl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	herd := func(n int) (each time.Duration) {
		store := sqliteStore(t)
		var all sync.WaitGroup
		var mu sync.Mutex
		for range n {
			all.Go(func() { // a command that was stopped in its moment fails the run
				cmd := exec.Command(program, "run", "--store", store, "gate", "--", "sleep", "0.1")
				text, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%d at once: %v: %s", n, err, text)
				}
				mu.Lock()
				defer mu.Unlock()
				each += (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()) / time.Duration(n)
			})
		}
		all.Wait()
		return each
	}
	const n = 200
	few, many := herd(10), herd(n)
	t.Logf("CPU of a run: %v among 10, %v among %d", few, many, n)
	if many > 3*few {
		t.Errorf("a run needs %v of CPU among %d, and %v among 10", many, n, few)
	}
}
