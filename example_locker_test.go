package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// fakeLocker is a lock of a test, which fails as the test wants. The leases are real leases, of a
// client in memory.
type fakeLocker struct {
	pawl.Locker
	fails error
}

func (l *fakeLocker) TryLock(ctx context.Context) (*pawl.Lease, error) {
	if l.fails != nil {
		return nil, l.fails
	}
	return l.Locker.TryLock(ctx)
}

// A function that takes a Locker is tested with a Locker that fails. The Locker fails by an error, or by a
// lease that is lost because the test breaks its lock.
func ExampleLocker() {
	report := func(ctx context.Context, lock pawl.Locker, work func(context.Context)) string { // the code under test
		lease, err := lock.TryLock(ctx)
		switch {
		case errors.Is(err, pawl.ErrNotAcquired):
			return "another works"
		case err != nil:
			return "store in trouble"
		}
		defer lease.Unlock(ctx)
		work(lease.Context())
		if errors.Is(lease.Err(), pawl.ErrLost) {
			return "lost meanwhile"
		}
		return "done"
	}

	ctx := context.Background()
	client, err := pawl.New(ctx, memengine.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	lock := &fakeLocker{Locker: client.Mutex("report")}
	nothing := func(context.Context) {}

	lock.fails = pawl.ErrNotAcquired
	fmt.Println(report(ctx, lock, nothing))
	lock.fails = pawl.ErrUnavailable
	fmt.Println(report(ctx, lock, nothing))
	lock.fails = nil
	fmt.Println(report(ctx, lock, nothing))
	fmt.Println(report(ctx, lock, func(held context.Context) {
		if _, err := client.Break(ctx, "report", pawl.BreakOptions{}); err != nil {
			log.Fatal(err)
		}
		<-held.Done()
	}))
	// Output:
	// another works
	// store in trouble
	// done
	// lost meanwhile
}
