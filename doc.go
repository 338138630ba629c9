// Package pawl has locks between goroutines, processes and machines. The locks are kept in a store
// that you already run, such as Redis, etcd, PostgreSQL or a SQLite file. Tests keep them in memory.
//
//	client, err := pawl.New(ctx, eng, nil) // eng from one of the engine packages
//	if err != nil { ... }
//	defer client.Close(context.Background())
//
//	err = client.Mutex("order/42").Do(ctx, func(ctx context.Context) error {
//		... // ctx ends when the lock is lost
//	})
//
// A [Client] keeps one session alive in the store, however many locks it holds. [Mutex], [RWMutex]
// and [Semaphore] are descriptions: making one does no I/O, and any number of them may exist. A
// held lock is a [Lease]. [LockAll] and [TryLockAll] take several locks or none. Each of them works
// the same on every store that has it. The promises of a store, and its gaps, are in its engine.Caps.
//
// [Value] is a small versioned value. [Latch], [Barrier] and [Election] are built on it, and so is
// [Slots], a semaphore whose permits have numbers. [Striped] has a fixed number of locks for any
// number of keys.
//
// Services stand on this package:
//
//   - work has queues of work, id identifiers, and idem operations that take effect once.
//   - outbox and inbox have messages, group and lb balancing.
//   - dtx has transactions over several databases.
//
// These services use only exported parts of this package, and so can a service of your own:
//
//   - [Client.Scope] keeps the names of the service apart from all others.
//   - [Value.Update], [Value.Next] and [Lease.Within] do the work.
//   - [Client.Retry] and [Linger] bound the time of requests.
//   - [Unavailable] classes the errors of a store.
//
// # Waiting
//
// Locks are first come, first served, also between machines. Where a store keeps no order, its Caps
// say so. A release hands the lock to the first
// waiter in the same step of the store, and wakes no other waiter. Readers do not starve a writer.
// Waiters for few permits do not starve a waiter for many. Dead waiters lose their place: a place
// lives as long as its session. [LockOptions].Barging trades the order for throughput.
//
// The context given to Lock bounds the waiting only. When that context ends, the client withdraws
// its claim. If the grant was on its way, the client gives the lock back.
//
// # Holding, and the trust window
//
// The store frees the locks of a client one TTL after it last heard of that client. The client
// renews its session every TTL/3 and counts more strictly than the store. The client trusts its
// locks until
//
//	start of its last successful renewal + TTL - margin
//
// where the margin is a tenth of the TTL and at most a second. The store counts from the moment in
// which it handled that renewal, which is later. So the client's trust ends first, whatever the
// network does. This holds as long as the rates of the two clocks differ by less than the margin;
// the clocks need not show the same time.
//
// When the trust ends, [Lease.Context] ends with the cause [ErrLost]. The holder then has the
// margin to stop before the store can give the lock to another client. Until then the client
// retries a failed renewal, and loses nothing by the failure.
//
// The store itself may say that the lock is gone, because an operator broke the lock or the store
// forgot it. Then the context ends at once, but another client may have the lock already.
//
// A machine that sleeps runs nothing, so no holder there can be told in time. After the machine
// wakes, [Lease.Err] knows at once where the system has a clock that counts sleep (Linux). The
// context ends with the next heartbeat at the latest.
//
// # What a lock cannot do
//
// A lock does not stop anybody. A holder may act after another client got the lock. Such a holder ignores
// the context of its lease, or was frozen between a check and a write. A request may also be
// on its way for that long. No lock service can prevent that. Where that would do harm, let the protected resource
// refuse the late write:
//
//	UPDATE orders SET ..., token = $1 WHERE id = 42 AND token <= $1
//
// with [Lease.Token], the fencing token. A later grant of a name has a larger token, also after
// release, crash and restart. The re-entries of one owner share its token. Readers hold a lock
// together, and so do holders of permits: their tokens do not fence them from one another.
//
// A job may start on many machines although it should run once in a period. Such a job takes its
// lock with [LockOptions].MinHold: the name stays taken for that time from the grant on.
//
// Where no resource can refuse a late write, Options.LockDelay keeps the locks of a dead holder for
// longer. The holder's last requests then have time to end. That is a guess, not a proof.
//
// A store that loses confirmed writes loses locks, too. The Caps of an engine say so: Redis in a
// failover may forget the last grants.
//
// # Owners
//
// Go has no thread identity, so re-entry is explicit. [Mutex.Do], [Lease.Context] and
// [Lease.Within] give a context that carries the lease. Locking the same name with that context
// succeeds at once and shares the grant, as long as the lease is held. All goroutines that have the
// context re-enter, because they hold through that one lease.
//
// A writer's context also enters the reading side. A reader's context does not enter the writing
// side: see [RWMutex.TryUpgrade]. A semaphore always takes new permits. Any other name is locked
// as without the context. [WithOwner] is wider, and rarely needed.
//
// # Errors
//
// Test errors with errors.Is:
//
//   - [ErrNotAcquired]: others hold the lock. If ctx ended the wait, the error matches that of ctx too.
//   - [ErrLost]: the lock was held and no longer is.
//   - [ErrUnavailable]: the store did not answer, which says nothing about the lock. If ctx ended
//     a wait meanwhile, the error matches ErrNotAcquired too.
//   - [ErrGrace]: not acquired, because the store started lately and may have forgotten holders.
//   - [ErrMismatch]: the name is in use as something else.
//   - [ErrUnsupported]: the store lacks the verb; no request was sent.
//   - [ErrConflict]: a value is at another version.
//   - [ErrBroken]: a barrier is broken.
//   - [ErrInvalid]: a field is out of range; the text names that field.
//   - [ErrClosed]: the client was closed or the lease released.
//
// A call returns within 100 ms of the end of its ctx, also on a store that hangs. If the store did
// not answer a release, later heartbeats repeat that release. The end of the session frees the lock
// in any case.
//
// # Operating
//
// [Client.Show] and [Client.List] read the holders and waiters. [Client.Break] evicts, and notes
// the operator and the reason. [Client.Err] says whether the client is well. With Options.Lazy a
// client that only reads opens no session.
//
// # Testing
//
// Test code that uses pawl with package memengine, which needs no server. That package runs under
// testing/synctest, where hours of waiting take no time. A function that takes a [Locker] can be
// given a Locker of the test: see the example there.
package pawl
