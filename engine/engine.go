// Package engine is the seam between pawl and a store: the duties of a store so that every primitive
// of pawl works on it. Users of pawl never call this package. The author of an engine reads this
// page and proves the engine with enginetest.
//
// # The model
//
// A resource is a name with a capacity and an ordered list of claims. A claim has an id, an owner,
// a session and a weight, and is waiting or granted. That is the whole model. A writer is a claim
// that weighs the whole capacity, and a reader is a claim that weighs 1. A semaphore of n is a
// capacity of n. Package queue holds the rules as one pure function. An engine either runs that
// function inside a transaction of its store or implements the rules natively.
//
// A session is one client's liveness in the store: one heartbeat for all its claims. When a session
// ends, its claims are gone.
//
// # Duties of an engine
//
//   - Every verb is one atomic step in the store, on the store's clock. No timestamp of a client is
//     ever sent.
//   - Enter, Leave and Evict are idempotent for one claim id. A caller whose reply was lost may
//     repeat the request, which counts once.
//   - Leave and Evict hand the resource on inside the same step. The message that wakes the next
//     waiter carries its grant (direct handoff), or the store has a native equivalent.
//   - Await returns when its claim is granted or gone. Await subscribes before it reads. Await relies
//     on messages first, and always on a slow poll too. The poll comes no later than the time at
//     which a session that blocks the claim can end.
//   - A claim of a session that has ended never holds, is never granted, and never blocks for longer
//     than a poll.
//   - A store that may have forgotten claims grants nothing until no earlier holder trusts its lock (restart grace).
//   - Errors are the store's own, wrapped with one of the classes of this package. An engine never
//     retries a verb whose outcome is unknown, and never logs. An engine keeps no policy: retry,
//     keep-alive, trust window, time-outs and tracing live once, in the root package.
//   - All methods are safe for concurrent use and end when ctx does. A claim whose ctx ended may be
//     in the store: the caller withdraws it by Leave.
//
// # Requests that arrive late
//
// A caller gives a request up when its ctx ends or its reply is lost. The store may serve that
// request for one more TTL. The request may then have these effects:
//
//   - Enter may bring a claim back that its client has left, and the store may grant that claim. An
//     id is never used for a second claim, so no other claim is affected.
//   - Leave and Evict may remove their claim, and no other.
//   - Renew may give its session a whole TTL again, unless that session has ended. No holder trusts
//     that TTL: the trust counts from the start of an answered Renew.
//   - Open may leave a session in the store, which ends after its TTL.
//   - Put may write at its version, and so never over a later Put.
//   - Resize may bring an older size back.
//
// The root package repairs all this in one place, its reconciliation with each heartbeat. For one
// TTL the root leaves the claims whose Enter the caller gave up. The root also leaves the claims of
// its session that [SessionOptions.Found] reports and that the client does not know. The root
// re-reads the number of permits every TTL/3, and corrects an older size.
//
// So an engine need not keep late requests out. An engine does more only where the root cannot see
// enough; the engine then gives the reason. A store that may serve a request later than a TTL has to
// refuse that request.
package engine

import (
	"context"
	"iter"
	"time"

	"github.com/pawl-go/pawl/fence"
)

// Engine is one store, shared by any number of sessions.
type Engine interface {
	// Caps returns the promises of the store. Caps needs no round trip and never changes during the
	// life of an engine.
	Caps() Caps

	// Open starts a session. Open fails with ErrUnavailable when the store does not answer and with
	// ErrUnsupported when the store cannot keep the TTL.
	Open(ctx context.Context, opts SessionOptions) (Session, error)

	// List yields the names of the resources that have claims and start with prefix, in no order,
	// each once. List may miss a name that comes or goes meanwhile. An engine may search a large
	// store in steps. After a step without a name the engine yields an empty name, which says that the store answers.
	List(ctx context.Context, prefix string) iter.Seq2[string, error]

	// Show reads one resource. A resource without claims is the zero Resource. The resource is not older than any answer
	// that the caller has from this engine. So Show tells a writer whether a claim of the same owner was there until the grant.
	Show(ctx context.Context, name string) (Resource, error)

	// Evict removes a claim of any session, granted or waiting, and hands the resource on.
	// Operators use Evict; it needs no session. Evict fails with ErrGone when the claim is not there.
	Evict(ctx context.Context, resource, claim string) error

	// Close frees the engine's own resources. The user's own client stays open. The caller closes
	// all sessions before.
	Close() error
}

// Session is one client's liveness in the store.
type Session interface {
	// ID names the session in the store. ID is unguessable.
	ID() string

	// Enter puts the claim in the queue of its resource and returns its grant, or the zero Grant
	// when the claim has to wait. A claim that may not wait, and is not granted at once, is not
	// stored. Then Enter fails with ErrBusy, or with ErrGrace in a restart grace.
	//
	// A claim whose owner already holds at least as much shares that grant (re-entry), and gets the
	// largest token of the owner's granted claims. In a restart grace a shared grant comes with the Grace,
	// or Enter fails with ErrGrace. So does Await. The owner may have released that grant, and the store may have forgotten so. The
	// client keeps a shared grant only if another of its leases covers the claim. A claim that wants more than its owner holds is
	// an upgrade. The upgrade is granted at once if nobody waits, else refused with ErrBusy: two claims that
	// wait to upgrade would wait for each other. In a restart grace the upgrade is refused with ErrGrace, also if the claim may wait.
	Enter(ctx context.Context, c *Claim, wait bool) (Grant, error)

	// Await blocks until the waiting claim is granted, or is gone (ErrGone). The caller calls Await
	// after Enter returned the zero Grant, and again after an error. A claim has at most one call
	// at a time.
	Await(ctx context.Context, c *Claim) (Grant, error)

	// Leave removes a claim of this session, granted or waiting, and hands the resource on: Leave
	// releases and withdraws. Leave fails with ErrGone when the claim is not there. [Engine.Evict]
	// removes the claims of other sessions: Leave need not find them.
	Leave(ctx context.Context, resource, claim string) error

	// Renew proves that the client lives: from the start of the call the session has its whole TTL
	// again. Renew returns the held claims that are no longer granted in the store. Renew fails with
	// ErrGone when the session itself has ended.
	Renew(ctx context.Context, held []*Claim) (gone []*Claim, err error)

	// Close ends the session in the store, and its remaining claims with it. Close frees its local
	// resources even when the store cannot be reached. With a ctx that has ended, Close frees the
	// local resources only. The store then ends the session in its own time, unless the store lacks
	// [FeatureDelay].
	Close(ctx context.Context) error
}

// SessionOptions is how a session is opened.
type SessionOptions struct {
	// TTL is how long the session lives in the store without a Renew. An
	// engine may round it up.
	TTL time.Duration

	// Delay is the last part of the TTL, in which no holder trusts the session any more: 0 to TTL.
	// A store that may forget covers the rest with its restart grace. A session whose Delay is its
	// TTL is never renewed; a minimum hold has such a session.
	Delay time.Duration

	// Heartbeat is the time from one Renew to the next, by which waiters look again as well. The interval
	// does not follow from the TTL, which a Delay makes longer. 0 is a third of the TTL.
	Heartbeat time.Duration

	// Label names the client to an operator, such as host and process id.
	Label string

	// Gone, when set, is called when the store tells the engine that the granted claim with this id
	// is gone. That call is a hint, which may come early or not at all; Renew finds out. Gone must
	// not block.
	Gone func(claim string)

	// Found, when set, is called during Renew with a claim of this session that is in the store.
	// The engine reports the claims that the store tells beside the held claims. The client leaves
	// an unknown claim, which an old snapshot brought back or a late request entered. Found must
	// not block.
	Found func(resource, claim string)
}

// Belief is the longest time after a renewal in which a holder may trust the session. A restart
// grace has to cover it.
func (o SessionOptions) Belief() time.Duration { return o.TTL - o.Delay }

// Kind is the use of a resource. Kind is stored with the resource.
type Kind string

const (
	// KindLock is a resource that one writer or many readers hold.
	KindLock Kind = "lock"
	// KindSemaphore is a resource with permits.
	KindSemaphore Kind = "semaphore"
)

// LockCapacity is the capacity of a resource of [KindLock]: a writer weighs all
// of it, a reader 1.
const LockCapacity = 1 << 30

// Spec has the properties on which all claims of a resource must agree.
type Spec struct {
	Kind     Kind
	Capacity int64
	// Barging is the unfair discipline. A claim looks at granted claims only, so a running client
	// may overtake the waiters. A waiter is not handed the resource. The store tells the waiters,
	// in order, that the resource is free.
	Barging bool
}

// Claim is one party's request for a resource. A claim does not change after it has entered.
type Claim struct {
	Spec
	Resource string // 1 to 512 bytes of UTF-8 without control characters
	ID       string // unique for ever
	Owner    string // claims of one owner share a grant; the ID when there is no re-entry
	Weight   int64  // 1 to the Capacity at the time when the claim enters
	Label    string // for operators, no control characters
}

// Grant says that a claim holds its resource. A grant without a token says that the claim does not
// hold.
type Grant struct {
	Token fence.Token
	Grace Grace // why a claim has to wait although nobody may be ahead of it, or why a shared grant may be stale
}

// Grace is the restart grace of a store that may have forgotten claims. The zero Grace says that
// there is no grace.
type Grace struct {
	Age  time.Duration // since the store started or was marked anew; negative when the store does not tell
	Left time.Duration // until the store grants again; with a negative Age from when a client opens a session, if none did
}

// On reports whether the store grants nothing for now.
func (g Grace) On() bool { return g.Left > 0 }

// Held reports whether the claim holds its resource.
func (g Grant) Held() bool { return g.Token != 0 }

// Resource is a resource as an operator sees it.
type Resource struct {
	Name string
	Spec
	Claims []ClaimInfo // in order of the queue, granted claims first
	Grace  Grace       // of the store, when it has a restart grace
}

// ClaimInfo is a claim as an operator sees it.
type ClaimInfo struct {
	ID      string
	Owner   string
	Session string
	Label   string
	Weight  int64
	Token   fence.Token // 0 while the claim waits

	// These count on the store's clock. These times are negative when the store does not tell them.
	Age  time.Duration // since the claim entered
	Held time.Duration // since the grant; negative while the claim waits
	Left time.Duration // until the session ends without a further renewal
}

// Unknown is a duration that a store does not tell.
const Unknown time.Duration = -1

// Value is a versioned value.
type Value struct {
	Data    []byte
	Version uint64 // 0: there is no value
}

// MaxValue is the largest size of a versioned value in bytes.
const MaxValue = 64 << 10
