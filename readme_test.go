package pawl_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence"
)

func work(_ context.Context, token fence.Token) { fmt.Println("at work with token", token) }

func Example_readme() {
	ctx := context.Background()
	store := memengine.New() // for more than one process: sqliteengine, redisengine, etcdengine
	client, err := pawl.New(ctx, store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	order := client.Mutex("order/42") // a description: no I/O, safe to share
	lease, err := order.Lock(ctx)     // ctx bounds the waiting, not the hold
	if err != nil {
		log.Fatal(err) // nothing is held: pawl.ErrNotAcquired, pawl.ErrUnavailable, ...
	}
	work(lease.Context(), lease.Token()) // the context ends before another can hold the lock
	if err := lease.Unlock(ctx); err != nil {
		log.Fatal(err) // pawl.ErrLost: the lock was lost meanwhile
	}

	// The same in one call, which waits for the function before it releases.
	err = order.Do(ctx, func(ctx context.Context) error {
		return order.Do(ctx, func(context.Context) error { // ctx carries the lease: re-entry
			fmt.Println("held twice through one lease")
			return nil
		})
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// at work with token 1
	// held twice through one lease
}

// TestReadmeExample: the example of the README is the code that is compiled and run here.
func TestReadmeExample(t *testing.T) {
	source, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(source), "func Example_readme() {\n")
	body, _, found := strings.Cut(body, "\t// Output:\n")
	if !found {
		t.Fatal("readme_test.go has no Example_readme with an output")
	}
	want := strings.TrimPrefix(strings.ReplaceAll(body, "\n\t", "\n"), "\t")
	_, shown, _ := strings.Cut(string(readme), "<!-- example -->\n```go\n")
	shown, _, found = strings.Cut(shown, "```\n<!-- /example -->")
	if !found {
		t.Fatal("README.md has no block between <!-- example --> and <!-- /example -->")
	}
	if shown != want {
		t.Errorf("README.md differs from Example_readme, which is\n%s", want)
	}
}
