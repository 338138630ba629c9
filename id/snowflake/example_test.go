package snowflake_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
)

// Each process has a generator: it takes a worker number by itself.
func Example() {
	ctx := context.Background()
	client, err := pawl.New(ctx, memengine.New(), nil) // a store that all processes share
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	marks, err := id.Values(client, nil) // or sqlmark, if the store may forget
	if err != nil {
		log.Fatal(err)
	}
	orders, err := snowflake.New(ctx, client, marks, "orders", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(ctx)

	first, err := orders.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	second, err := orders.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	is, err := snowflake.Layout{}.Decompose(first)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(second > first, is.Worker, time.Since(is.Time) < time.Minute)
	// Output:
	// true 0 true
}
