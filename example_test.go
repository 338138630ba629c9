package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence"
)

// client returns a client of a store of its own. In a program the engine stands for a store that
// all processes share.
func client() *pawl.Client {
	c, err := pawl.New(context.Background(), memengine.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// The context bounds the waiting. An error says whether the lock was taken or the store could not
// be asked.
func ExampleMutex() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	m := client.Mutex("order/42")

	lease, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = m.Lock(soon)
	fmt.Println(errors.Is(err, pawl.ErrNotAcquired), errors.Is(err, context.DeadlineExceeded))
	fmt.Println(err)
	fmt.Println(lease.Unlock(ctx)) // ErrLost if it was no longer held
	// Output:
	// true true
	// lock "order/42": not acquired: context deadline exceeded
	// <nil>
}

// The context of fn ends when the lock is lost, and locking with it is re-entry.
func ExampleMutex_Do() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	m := client.Mutex("order/42")

	ship := func(ctx context.Context) error { // may be called with the lock and without
		return m.Do(ctx, func(context.Context) error {
			fmt.Println("shipping")
			return nil
		})
	}
	err := m.Do(ctx, func(ctx context.Context) error {
		fmt.Println("packing")
		if err := ship(ctx); err != nil {
			return err
		}
		return ctx.Err() // not nil once the lock is lost
	})
	fmt.Println(err)
	// Output:
	// packing
	// shipping
	// <nil>
}

// A writer that becomes a reader lets other readers in, and no writer between.
func ExampleRWMutex() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	config := client.RWMutex("config")

	writer, err := config.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	reader, err := config.RLock(writer.Context()) // of the same owner
	if err != nil {
		log.Fatal(err)
	}
	_, err = config.TryRLock(ctx)
	fmt.Println("another reader beside the writer:", err)
	if err := writer.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	other, err := config.TryRLock(ctx)
	fmt.Println("another reader after the downgrade:", err)
	fmt.Println(pawl.Leases{reader, other}.Unlock(ctx))
	// Output:
	// another reader beside the writer: lock "config": not acquired: enter: busy
	// another reader after the downgrade: <nil>
	// <nil>
}

// At most three at once, on all machines together; a large job counts for two.
func ExampleSemaphore() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	exports := client.Semaphore("exports", 3)

	large, err := exports.Weighted(2).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	small, err := exports.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = exports.TryLock(ctx)
	fmt.Println(errors.Is(err, pawl.ErrNotAcquired))
	fmt.Println(pawl.Leases{large, small}.Unlock(ctx))
	// Output:
	// true
	// <nil>
}

// An operator's number overrides the number that clients declare, also when nobody uses the
// semaphore in between.
func ExampleSemaphore_Resize() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	exports := client.Semaphore("exports", 1)

	first, err := exports.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(exports.Resize(ctx, 2))
	second, err := exports.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(pawl.Leases{first, second}.Unlock(ctx))
	// Output:
	// <nil>
	// <nil>
}

// LockAll takes all locks or none, in an order of its own. So two callers that want some of the
// same locks do not wait for each other.
func ExampleLockAll() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)

	held, err := pawl.LockAll(ctx, client.Mutex("account/7"), client.Mutex("account/3"))
	if err != nil {
		log.Fatal(err)
	}
	for _, lease := range held {
		fmt.Println(lease.Name())
	}
	work, cancel := held.Context(ctx) // ends when one of the locks is lost
	defer cancel()
	fmt.Println(work.Err(), held.Unlock(ctx))
	// Output:
	// account/3
	// account/7
	// <nil> <nil>
}

// account is a thing that a lock protects. An account remembers the largest token that it has seen;
// in a database that is a column and a condition.
type account struct {
	balance int
	seen    fence.Token
}

var errStale = errors.New("the lock that covered this write is no longer held")

func (a *account) set(balance int, token fence.Token) error {
	if token < a.seen {
		return errStale
	}
	a.balance, a.seen = balance, token
	return nil
}

// A frozen holder does not know that its lock went to another client. The token in its write tells
// the account.
func ExampleLease_Token() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	var protected account

	lock := func() *pawl.Lease {
		lease, err := client.Mutex("account/7").Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		return lease
	}
	frozen := lock()
	if err := frozen.Unlock(ctx); err != nil { // or the lease expired, or an operator broke it
		log.Fatal(err)
	}
	next := lock()
	fmt.Println(protected.set(100, next.Token()))
	fmt.Println(protected.set(0, frozen.Token())) // wakes up and writes
	fmt.Println(protected.balance, next.Unlock(ctx))
	// Output:
	// <nil>
	// the lock that covered this write is no longer held
	// 100 <nil>
}
