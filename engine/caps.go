package engine

import (
	"fmt"
	"time"
)

// Caps are the promises of a store. The tables in the documentation are made from Caps, and the
// conformance suite checks them.
type Caps struct {
	Name      string        // the engine, as in the scheme of its URL
	Token     TokenStrength // where fencing tokens come from
	Wake      Wake          // how a waiter is woken
	Expiry    Expiry        // which clock ends a dead session
	Forgets   bool          // the store may lose its state in a restart, so it has a restart grace
	Failover  Failover      // what a change of the store's leader can lose
	Processes Reach         // which processes can share the store
	EnterTrip int           // round trips to enter when nobody holds
	LeaveTrip int           // round trips to leave
	MinTTL    time.Duration // the shortest TTL that the store keeps
	MaxClaims int           // how many claims a name can have before Enter refuses; 0: no bound

	// Lacks are the features that the store cannot honestly keep, with the reason as users read it.
	// Nil: the store keeps all of them.
	Lacks map[Feature]string
}

// Feature is a part of the model that a store may be unable to keep.
type Feature string

const (
	// FeatureOrder is first come, first served. A store that lacks it grants claims in any order,
	// and refuses no claim because of that.
	FeatureOrder Feature = "order of arrival"
	// FeatureShared is a lock held by several readers.
	FeatureShared Feature = "shared locks"
	// FeatureSemaphore is a resource with permits.
	FeatureSemaphore Feature = "semaphores"
	// FeatureResize gives a semaphore another size while it is used: [Resizer].
	FeatureResize Feature = "resizing of semaphores"
	// FeatureValues is Get, Put and Watch: [Values].
	FeatureValues Feature = "versioned values"
	// FeatureDelay keeps the locks of a dead client held for the rest of its session's TTL.
	FeatureDelay Feature = "lock-delay"
	// FeatureMinHold keeps a claim for a time that was fixed when its session began, whatever
	// becomes of its client. FeatureMinHold needs [FeatureDelay].
	FeatureMinHold Feature = "minimum hold"
)

// Refuse returns the [ErrUnsupported] with which an engine refuses a claim of this spec and weight,
// or nil.
func (c Caps) Refuse(spec Spec, weight int64) error {
	switch {
	case spec.Kind == KindSemaphore:
		return c.RefuseFeature(FeatureSemaphore)
	case weight < spec.Capacity:
		return c.RefuseFeature(FeatureShared)
	}
	return nil
}

// RefuseFeature returns the [ErrUnsupported] with which an engine refuses a feature that it lacks,
// or nil.
func (c Caps) RefuseFeature(f Feature) error {
	if why, lacking := c.Lacks[f]; lacking {
		return fmt.Errorf("%w: no %s on %s: %s", ErrUnsupported, f, c.Name, why)
	}
	return nil
}

// TokenStrength says how far a client can trust that a store's tokens grow.
type TokenStrength string

const (
	// TokenRevision comes from the store's own durable sequence, which never goes back.
	TokenRevision TokenStrength = "durable sequence"
	// TokenClock is max(last + 1, server time in µs). TokenClock grows across release, expiry and a restart
	// that lost everything, unless the server's clock also went back meanwhile.
	TokenClock TokenStrength = "server clock"
	// TokenWeak grows as long as the clocks of independent servers agree: two holders may have one
	// token. TokenWeak mostly tells which holder is newer, and fences nothing.
	TokenWeak TokenStrength = "weak"
)

// Wake says how a waiter is woken.
type Wake string

const (
	// WakeHandoff carries the grant in the message: no further round trip.
	WakeHandoff Wake = "message with the grant"
	// WakeWatch is the store's watch; the waiter then reads its place.
	WakeWatch Wake = "watch, then one read"
	// WakeServer is the server's own lock queue: the waiter's request blocks
	// there, and its reply is the grant.
	WakeServer Wake = "the server's lock queue"
	// WakePoll is a slow poll, one for all waiters of a process.
	WakePoll Wake = "one poll a process"
	// WakeTry is a message that something is free; waiters then try again.
	WakeTry Wake = "message, then a try"
)

// Expiry says which clock ends a dead session.
type Expiry string

const (
	// ExpiryMonotonic does not jump when somebody sets the time.
	ExpiryMonotonic Expiry = "monotonic"
	// ExpiryWall follows the server's time of day: a jump of that clock ends
	// sessions early or late.
	ExpiryWall Expiry = "time of day"
	// ExpiryConnection: a session ends the moment its connection does. The session of a machine
	// that vanished ends after a TTL.
	ExpiryConnection Expiry = "end of the connection"
	// ExpiryObserved: the store has no clock for sessions. A session ends when an observer saw no
	// heartbeat for its TTL, by the observer's own monotonic clock. So a claim that does not wait
	// is busy behind a dead session, until some client has observed that session for a TTL.
	ExpiryObserved Expiry = "what clients observed"
)

// Failover says which grants a change of the store's leader can lose.
type Failover string

const (
	// FailoverNone: there is at most one server, so there is no change of leader.
	FailoverNone Failover = "single"
	// FailoverSafe: the next leader knows all grants.
	FailoverSafe Failover = "keeps grants"
	// FailoverLoses: a replica that takes over may not know the last grants.
	FailoverLoses Failover = "may lose the last grants"
	// FailoverAcked: as many replicas as the user asked for know a grant before a client trusts it.
	FailoverAcked Failover = "keeps grants that k replicas know"
	// FailoverQuorum: there is no leader; a minority may fail.
	FailoverQuorum Failover = "a minority may fail"
)

// Reach says which processes can share the store.
type Reach string

const (
	// ReachProcess is one process.
	ReachProcess Reach = "one process"
	// ReachMachine is all processes of one machine.
	ReachMachine Reach = "one machine"
	// ReachNetwork is every machine that reaches the store.
	ReachNetwork Reach = "network"
)
