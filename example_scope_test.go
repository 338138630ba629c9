package pawl_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pawl-go/pawl"
)

// flags is a service that is built on this package: switches that all processes see.
type flags struct{ scope *pawl.Scope }

// turn switches a flag. A repetition changes nothing, so the update may be retried.
func (f flags) turn(ctx context.Context, name, to string) error {
	_, err := f.scope.Value(name).Idempotent().Update(ctx, func(is pawl.Snapshot) ([]byte, error) {
		if string(is.Data) == to {
			return nil, pawl.ErrUnchanged
		}
		return []byte(to), nil
	})
	return err
}

// next waits until a flag changes.
func (f flags) next(ctx context.Context, name string, seen pawl.Snapshot) (pawl.Snapshot, error) {
	return f.scope.Value(name).Next(ctx, seen.Number)
}

// A service keeps its values and locks in a scope, apart from the names of its users.
func ExampleClient_Scope() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	f := flags{client.Scope("flags")}

	var seen pawl.Snapshot
	for _, to := range []string{"on", "on", "off"} {
		if err := f.turn(ctx, "dark mode", to); err != nil {
			log.Fatal(err)
		}
		if to == "on" && seen.Number > 0 {
			continue // it was on already
		}
		var err error
		if seen, err = f.next(ctx, "dark mode", seen); err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(seen.Data))
	}
	users, err := client.Value("dark mode").Get(ctx)
	fmt.Println(users.Number, err)
	// Output:
	// on
	// off
	// 0 <nil>
}
