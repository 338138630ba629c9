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
// A [Client] keeps one session alive in the store, whatever it holds. [Mutex],
// [RWMutex] and [Semaphore] are descriptions: making one does no I/O, and any
// number of them may exist. What is held is a [Lease]. [LockAll] and [TryLockAll] take several
// locks or none. All of them work the same on every store; what a store promises,
// and what it lacks, is in its engine.Caps.
//
// On versioned values, [Value], stand [Latch], [Barrier], [Election] and [Pool], which hands
// items of work to workers; [Striped] is many locks for any number of keys.
//
// # Waiting
//
// Locks are first come, first served, also between machines: a release hands the
// lock to the first that waits, in the same step of the store, and wakes no one
// else. A writer is not starved by readers, nor a request for many permits by
// those for few. Who waits is alive or is skipped: its place lives as long as its
// session. [LockOptions].Barging trades the order for throughput.
//
// The context given to Lock bounds the waiting only. When it ends, the claim is
// withdrawn, or given back if its grant was on the way.
//
// # Holding, and the trust window
//
// The store frees what a client holds one TTL after it last heard of it. The
// client renews each TTL/3 and counts more strictly: it believes until
//
//	start of its last successful renewal + TTL - margin
//
// where the margin is a tenth of the TTL and at most a second. The store counts
// from when it handled that renewal, which is later. So the belief ends first,
// whatever the network does, as long as the two clocks run at rates that differ by
// less than the margin; that they show the same time does not matter. At that
// instant [Lease.Context] ends with the cause [ErrLost], and the holder has the
// margin to stop before the store can give the lock to another. Renewals that fail
// are repeated until then, and lose nothing. When the store itself says that the
// lock is gone, because an operator broke it or it forgot, the context ends at
// once, but another may have it already.
//
// A machine that sleeps runs nothing, so nothing can be told in time. After it
// wakes [Lease.Err] knows at once where the system has a clock that counts sleep
// (Linux), and the context ends with the next heartbeat at the latest.
//
// # What a lock cannot do
//
// A lock does not stop anybody. Code that ignores its context, a process that is
// frozen between a check and a write, a request that is still on its way: all of
// them may act on what another holds by then, with this or any other lock service.
// Where that would do harm, let the protected thing refuse it:
//
//	UPDATE orders SET ..., token = $1 WHERE id = 42 AND token <= $1
//
// with [Lease.Token], the fencing token. A later grant of a name has a larger one,
// also after release, crash and restart. It is the same for the re-entries of one
// owner. Readers, and holders of permits, hold beside one another, so their tokens
// do not fence them from one another.
//
// A job that shall run once in a period, whichever machine starts it, takes its lock with
// [LockOptions].MinHold: the name stays taken for that time from the grant on.
//
// Where nothing can refuse it, Options.LockDelay keeps what a dead holder had for some
// time longer, so that what it had under way can end. That is a guess, not a proof.
//
// A store that loses what it has confirmed loses locks, too. An engine that may
// meet that says so: Redis in a failover may forget the last grants.
//
// # Owners
//
// Go has no thread identity, so re-entry has to be said: [Mutex.Do], [Lease.Context] and
// [Lease.Within] give a context that carries the lease. Locking the same name with it
// succeeds at once and shares the grant, also the reading side of what is held for
// writing, as long as the lease is held. All goroutines that have the context re-enter, for
// they hold through that one lease. Any other name is locked as ever, a semaphore takes
// permits anew, and a reader that would write is refused: see [RWMutex.TryUpgrade].
// [WithOwner] is wider, and rarely wanted.
//
// # Errors
//
// Test them with errors.Is. [ErrNotAcquired]: it is held by others, and matches
// the context's error when that ended the wait. [ErrLost]: it was held and no
// longer is. [ErrUnavailable]: the store did not answer, which says nothing about
// the lock; a wait that its context ended meanwhile matches both. [ErrGrace]: not acquired,
// because the store was started lately and may have forgotten who holds. [ErrMismatch]:
// the name is in use as something else. [ErrUnsupported]: the store cannot
// carry it, which is said before the store is asked. [ErrConflict]: a value is at
// another version. [ErrBroken]: a barrier is. [ErrInvalid] names what is out of range.
// [ErrClosed]: the client was closed or the lease released.
//
// A call is back within 100 ms of the end of its ctx, also on a store that hangs. A lock
// that could not be released, because the store did not answer, is released by a later
// heartbeat, and in any case by the end of the session.
//
// # Operating
//
// [Client.Show] and [Client.List] read who holds and who waits, [Client.Break] evicts and notes
// who did it and why, [Client.Err] says whether the client is well. With Options.Lazy a
// client that only reads opens no session.
//
// # Testing
//
// Code that uses pawl is tested with package memengine, which needs no server and
// runs under testing/synctest: hours of waiting take no time there.
package pawl
