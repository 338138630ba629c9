package redisstock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/idem/redisstock"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/internal/testservers"
)

// An order reserves, is written, and confirms. Each call may come twice.
func ExampleStock_Reserve() {
	ctx := context.Background()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(testservers.ForExample()).Addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	sku, err := redisstock.New(client, "sku-7", &redisstock.Options{Parts: 4})
	if err != nil {
		log.Fatal(err)
	}
	if err := sku.Put(ctx, "delivery-1", 10); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		fmt.Println(sku.Reserve(ctx, "order-42", 8))
	}
	for range 2 {
		fmt.Println(sku.Confirm(ctx, "order-42"))
	}
	err = sku.Reserve(ctx, "order-43", 3)
	fmt.Println(errors.Is(err, stock.ErrSoldOut))
	fmt.Println(sku.Reserve(ctx, "order-44", 2))
	fmt.Println(sku.Total(ctx))
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// <nil>
	// true
	// <nil>
	// {0 2} <nil>
}
