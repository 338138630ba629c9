// Package pawl is for locks between goroutines, processes and machines, over a
// store that is there already: a file, Redis, etcd, or memory for tests.
//
//	client, err := pawl.New(ctx, eng, nil) // eng from one of the engine packages
//	if err != nil { ... }
//	defer client.Close(context.Background())
//
//	err = client.Mutex("order/42").Do(ctx, func(ctx context.Context) error {
//		... // ctx ends when the lock is lost
//	})
//
// A [Client] keeps one session alive in the store, however many locks it holds. [Mutex],
// [RWMutex] and [Semaphore] are descriptions: making one does no I/O, and any
// number of them may exist. A held lock is a [Lease]. [LockAll] and [TryLockAll] take several
// locks or none. All of them work the same on every store; the promises of a store,
// and its gaps, are in its engine.Caps.
//
// On versioned values, [Value], stand [Latch], [Barrier], [Election] and [Slots], which are permits with
// numbers; [Striped] is many locks for any number of keys. Package work hands items of work to workers. That package, and a service
// of your own, is built on what this package exports: [Client.Scope] keeps its names apart,
// [Value.Update], [Value.Next] and [Lease.Within] do the work, [Client.Retry] and [Linger] bound it,
// and [Unavailable] classes its errors.
//
// # Waiting
//
// Locks are first come, first served, also between machines: a release hands the
// lock to the first waiter, in the same step of the store, and wakes no other
// waiter. A writer is not starved by readers, nor a request for many permits by
// those for few. Dead waiters lose their place: a place lives as long as its
// session. [LockOptions].Barging trades the order for throughput.
//
// The context given to Lock bounds the waiting only. When it ends, the claim is
// withdrawn, or given back if its grant was on the way.
//
// # Holding, and the trust window
//
// The store frees the locks of a client one TTL after it last heard of that client. The
// client renews each TTL/3 and counts more strictly: it believes until
//
//	start of its last successful renewal + TTL - margin
//
// where the margin is a tenth of the TTL and at most a second. The store counts
// from when it handled that renewal, which is later. So the belief ends first,
// whatever the network does, as long as the rates of the two clocks differ by
// less than the margin; the clocks need not show the same time. At that
// instant [Lease.Context] ends with the cause [ErrLost]. The holder then has the
// margin to stop before the store can give the lock to another. Renewals that fail
// are repeated until then, and lose nothing. The store itself may say that the
// lock is gone, because an operator broke it or the store forgot. Then the context ends at
// once, but another client may have the lock already.
//
// A machine that sleeps runs nothing, so no holder there can be told in time. After the
// machine wakes, [Lease.Err] knows at once where the system has a clock that counts sleep
// (Linux). The context ends with the next heartbeat at the latest.
//
// # What a lock cannot do
//
// A lock does not stop anybody. Code that ignores its context, a process that is
// frozen between a check and a write, a request that is still on its way: all of
// them may act after another client got the lock, with this or any other lock service.
// Where that would do harm, let the protected resource refuse the late write:
//
//	UPDATE orders SET ..., token = $1 WHERE id = 42 AND token <= $1
//
// with [Lease.Token], the fencing token. A later grant of a name has a larger token,
// also after release, crash and restart. The re-entries of one owner share its
// token. Readers, and holders of permits, hold beside one another, so their tokens
// do not fence them from one another.
//
// A job that runs once in a period, whichever machine starts it, takes its lock with
// [LockOptions].MinHold: the name stays taken for that time from the grant on.
//
// Where no resource can refuse, Options.LockDelay keeps the locks of a dead holder for some
// time longer, so that its requests under way can end. That is a guess, not a proof.
//
// A store that loses confirmed writes loses locks, too. The Caps of an engine
// say so: Redis in a failover may forget the last grants.
//
// # Owners
//
// Go has no thread identity, so re-entry is explicit: [Mutex.Do], [Lease.Context] and
// [Lease.Within] give a context that carries the lease. Locking the same name with that context
// succeeds at once and shares the grant, as long as the lease is held. A writer's context also
// enters the reading side. All goroutines that have the context re-enter, because
// they hold through that one lease. Any other name is locked as ever, a semaphore takes
// permits anew, and a reader that would write is refused: see [RWMutex.TryUpgrade].
// [WithOwner] is wider, and rarely wanted.
//
// # Errors
//
// Test them with errors.Is. [ErrNotAcquired]: others hold the lock; matches
// the context's error too when that ended the wait. [ErrLost]: the lock was held and no
// longer is. [ErrUnavailable]: the store did not answer, which says nothing about
// the lock; a wait that its context ended meanwhile matches both. [ErrGrace]: not acquired,
// because the store was started lately and may have forgotten holders. [ErrMismatch]:
// the name is in use as something else. [ErrUnsupported]: the store lacks the
// verb; the store is not asked. [ErrConflict]: a value is at
// another version. [ErrBroken]: a barrier is broken. [ErrInvalid] names the field that is out of range.
// [ErrClosed]: the client was closed or the lease released.
//
// A call is back within 100 ms of the end of its ctx, also on a store that hangs. A lock
// that could not be released, because the store did not answer, is released by a later
// heartbeat, and in any case by the end of the session.
//
// # Operating
//
// [Client.Show] and [Client.List] read the holders and waiters. [Client.Break] evicts, and notes
// the operator and the reason. [Client.Err] says whether the client is well. With Options.Lazy a
// client that only reads opens no session.
//
// # Testing
//
// Code that uses pawl is tested with package memengine, which needs no server and
// runs under testing/synctest: hours of waiting take no time there. Code that takes a [Locker] may
// get one that a test makes, see the example there.
package pawl
