package segment_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/segment"
)

// A process takes numbers from batches of a counter that all processes share.
func Example() {
	ctx := context.Background()
	client, err := pawl.New(ctx, memengine.New(), nil) // or etcdengine, sqliteengine, zkengine
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx) //nolint:errcheck // the example ends
	registers, err := id.Values(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	orders, err := segment.New(registers.Counter("orders"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(ctx) //nolint:errcheck // as above

	batch := make([]int64, 3)
	if _, err := orders.NextN(ctx, batch); err != nil {
		log.Fatal(err)
	}
	next, err := orders.Next(ctx)
	fmt.Println(batch, next, err)
	// Output: [1 2 3] 4 <nil>
}
