package readable_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/readable"
)

// Order numbers of a day, with the last four digits of the user and a check digit.
func Example() {
	ctx := context.Background()
	client, err := pawl.New(ctx, memengine.New(), nil) // for all machines: etcdengine, zkengine, or package sqlmark
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx) //nolint:errcheck // the example ends
	registers, err := id.Values(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	daily, err := readable.NewDaily(registers, "orders")
	if err != nil {
		log.Fatal(err)
	}
	format, err := readable.New("ORD-{date:20060102}-{field:user:4}-{n:7}-{digit}", &readable.Options{
		Counter: daily.Generator,
		Now:     func() time.Time { return time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC) },
	})
	if err != nil {
		log.Fatal(err)
	}
	orders, err := format.Generator(map[string]string{"user": "0042"})
	if err != nil {
		log.Fatal(err)
	}

	text, err := orders.Next(ctx)
	fmt.Println(text, err)
	parts, err := format.Parse(text)
	fmt.Println(parts.Number, parts.Fields["user"], parts.Time.Format(time.DateOnly), err)
	_, err = format.Parse("ORD-20261122-0024-0000001-" + text[len(text)-1:])
	fmt.Println(err != nil)
	// Output:
	// ORD-20261122-0042-0000001-3 <nil>
	// 1 0042 2026-11-22 <nil>
	// true
}
