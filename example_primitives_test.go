package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"sync"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// No update is lost, and no caller waits: fn is called again when another writer was faster.
func ExampleValue_Update() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	stock := client.Value("stock/apples")

	if _, err := stock.Put(ctx, []byte("3"), 0); err != nil { // if there is none
		log.Fatal(err)
	}
	errSoldOut := errors.New("sold out")
	sell := func(is pawl.Snapshot) ([]byte, error) {
		left, _ := strconv.Atoi(string(is.Data))
		if left == 0 {
			return nil, errSoldOut
		}
		return strconv.AppendInt(nil, int64(left-1), 10), nil
	}
	for range 4 {
		is, err := stock.Update(ctx, sell)
		fmt.Println(string(is.Data), err)
	}
	// Output:
	// 2 <nil>
	// 1 <nil>
	// 0 <nil>
	// 0 sold out
}

// Each holder has a number of its own, as worker ids and shards need it.
func ExampleClient_Slots() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	shards := client.Slots("shards", 8)

	first, err := shards.Take(ctx)
	if err != nil {
		log.Fatal(err)
	}
	last, err := shards.Prefer(7).Take(ctx) // the number that this holder had before, say
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Number(), last.Number())
	if err := first.Unlock(ctx); err != nil { // as it would be free if its holder died
		log.Fatal(err)
	}
	next, err := shards.Take(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(next.Number(), next.Token() > first.Token())
	// Output:
	// 0 7
	// 0 true
}

// A waiting party goes on when all have counted down.
func ExampleLatch() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	loaded := client.Latch("shards loaded", 3)

	for _, shard := range []string{"a", "b", "b", "c"} { // a party counts once
		if err := loaded.CountDown(ctx, shard); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(loaded.Wait(ctx))
	fmt.Println(loaded.Count(ctx))
	// Output:
	// <nil>
	// 0 <nil>
}

// The parties of a round leave together. The last party to come gets 0: it can do the work that is
// due once a round.
func ExampleBarrier() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	step := client.Barrier("simulation", 3)

	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			index, err := step.Wait(ctx)
			if err != nil { // ErrBroken: a party gave up or died
				log.Fatal(err)
			}
			if index == 0 {
				fmt.Println("all are here")
			}
		})
	}
	all.Wait()
	// Output: all are here
}

// A leader announces a value, which others observe. The leader leads no more when the context of its term
// ends.
func ExampleElection() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	scheduler := client.Election("scheduler")

	term, err := scheduler.Campaign(ctx, []byte("10.0.0.7:8080"))
	if err != nil {
		log.Fatal(err)
	}
	for leader, err := range scheduler.Observe(ctx) {
		fmt.Println(string(leader.Value), leader.Token == term.Token(), err)
		break
	}
	fmt.Println(scheduler.Resign(ctx, term))
	// Output:
	// 10.0.0.7:8080 true <nil>
	// <nil>
}

// Many keys share a few locks.
func ExampleStriped() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	accounts := client.Striped("accounts", 64)

	leases, err := accounts.LockAll(ctx, "alice", "bob") // in an order that is the same for all callers
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(leases.Unlock(ctx))
	// Output: <nil>
}

// A writer goes on as a reader, and nobody writes in between.
func ExampleRWMutex_Downgrade() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	config := client.RWMutex("config")

	writer, err := config.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	reader, err := config.Downgrade(ctx, writer)
	if err != nil {
		log.Fatal(err)
	}
	other, err := config.TryRLock(ctx)
	fmt.Println(other != nil, err)
	_, err = config.TryUpgrade(ctx, reader) // there is another reader
	fmt.Println(errors.Is(err, pawl.ErrNotAcquired), reader.Err())
	fmt.Println(pawl.Leases{reader, other}.Unlock(ctx))
	// Output:
	// true <nil>
	// true <nil>
	// <nil>
}

// An observer gets the events of the locks of a client. Package observe has observers that write
// logs, metrics and traces.
func ExampleOptions_observe() {
	ctx := context.Background()
	client, err := pawl.New(ctx, memengine.New(), &pawl.Options{
		Observe: func(_ context.Context, e pawl.Event) { fmt.Println(e.Kind, e.Use, e.Name) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	if err := client.Mutex("order/42").Do(ctx, func(context.Context) error { return nil }); err != nil {
		log.Fatal(err)
	}
	// Output:
	// attempt lock order/42
	// granted lock order/42
	// released lock order/42
}

// A member of a barrier is missed also between two waits. All parties that find the barrier broken
// may reset it, because each names the broken generation.
func ExampleBarrier_Join() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	step := client.Barrier("steps", 2)

	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			member, err := step.Join(ctx)
			if err != nil {
				log.Fatal(err)
			}
			defer member.Leave(ctx)
			for done := 0; done < 2; {
				index, err := member.Wait(ctx)
				var broken *pawl.BrokenError
				switch {
				case errors.As(err, &broken):
					if err := step.Reset(ctx, broken.Generation); err != nil {
						log.Fatal(err)
					}
					continue
				case err != nil:
					log.Fatal(err)
				case index == 0:
					fmt.Println("all are here")
				}
				done++
			}
		})
	}
	all.Wait()
	// Output:
	// all are here
	// all are here
}
