package idem_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem"
)

// exampleClient returns a client of a store in memory; a program opens the store that it has.
func exampleClient() *pawl.Client {
	client, err := pawl.New(context.Background(), memengine.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// A payment by another service. The request to that service has the key, so the service applies it once.
func ExampleLeases_Do() {
	ctx, client := context.Background(), exampleClient()
	defer client.Close(ctx)
	leases := idem.NewLeases(client, nil)
	charge := func(ctx context.Context, c *idem.Claim) ([]byte, error) {
		fmt.Println("charge with key", c.Key())
		return []byte("receipt 17"), nil
	}
	key := idem.Key{Scope: "pay/user-7", ID: "8e03978e-40d5-43e8-bc93-6894a57f9324"}
	print := idem.FingerprintOf([]byte("POST"), []byte("/payments"), []byte(`{"amount": 5}`))
	for range 2 {
		receipt, repeat, err := leases.Do(ctx, key, print, nil, charge)
		fmt.Printf("%s, repeat %v, %v\n", receipt, repeat, err)
	}
	// Output:
	// charge with key pay/user-7|8e03978e-40d5-43e8-bc93-6894a57f9324
	// receipt 17, repeat false, <nil>
	// receipt 17, repeat true, <nil>
}

// Work of two steps. A worker that takes the key over does not reserve again.
func ExampleClaim_Reach() {
	ctx, client := context.Background(), exampleClient()
	defer client.Close(ctx)
	leases := idem.NewLeases(client, nil)
	key := idem.Key{Scope: "travel", ID: "trip 42"}
	book := func(charged error) error {
		claim, err := leases.Begin(ctx, key, idem.Fingerprint{}, nil)
		if err != nil {
			return err
		}
		defer claim.Abort(ctx) //nolint:errcheck // the record stays for the next worker
		seat, reserved := claim.Point("reserved")
		if !reserved {
			seat = []byte("12A")
			fmt.Println("reserve", string(seat))
			if err := claim.Reach(ctx, "reserved", seat); err != nil {
				return err
			}
		}
		if charged != nil {
			return charged
		}
		return claim.Complete(ctx, seat)
	}
	fmt.Println(book(fmt.Errorf("the bank is closed")))
	fmt.Println(book(nil))
	// Output:
	// reserve 12A
	// the bank is closed
	// <nil>
}

// A text message that nobody should get twice, and that may be missed.
func ExampleOnce() {
	ctx, client := context.Background(), exampleClient()
	defer client.Close(ctx)
	leases := idem.NewLeases(client, nil)
	for range 2 {
		first, err := idem.Once(ctx, leases, idem.Key{Scope: "reminder", ID: "user-7/2026-11-23"}, idem.Fingerprint{})
		if err != nil {
			log.Fatal(err)
		}
		if first {
			fmt.Println("send the message")
		}
	}
	// Output: send the message
}
