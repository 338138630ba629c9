package engine

import "time"

// Caps is what a store promises. The tables in the documentation are made from
// it, and the conformance suite checks it.
type Caps struct {
	Name      string        // the engine, as in the scheme of its URL
	Token     TokenStrength // where fencing tokens come from
	Wake      Wake          // what wakes a waiter
	Expiry    Expiry        // which clock ends a dead session
	Forgets   bool          // the store may lose its state in a restart, so it has a restart grace
	Failover  Failover      // what a change of the store's leader can lose
	Processes Reach         // who can share it
	EnterTrip int           // round trips to enter when nobody holds
	LeaveTrip int           // round trips to leave
	MinTTL    time.Duration // the shortest TTL that it keeps
}

// TokenStrength says how far a store's tokens can be trusted to grow.
type TokenStrength string

const (
	// TokenRevision comes from the store's own durable sequence: it never
	// goes back.
	TokenRevision TokenStrength = "durable sequence"
	// TokenClock is max(last + 1, server time in µs): it grows across release,
	// expiry and a restart that lost everything, unless the server's clock
	// also went back meanwhile.
	TokenClock TokenStrength = "server clock"
)

// Wake says what wakes a waiter.
type Wake string

const (
	// WakeHandoff carries the grant in the message: no further round trip.
	WakeHandoff Wake = "message with the grant"
	// WakeWatch is the store's watch; the waiter then reads its place.
	WakeWatch Wake = "watch, then one read"
)

// Expiry says which clock ends a dead session.
type Expiry string

const (
	// ExpiryMonotonic does not jump when somebody sets the time.
	ExpiryMonotonic Expiry = "monotonic"
	// ExpiryWall follows the server's time of day: a jump of that clock ends
	// sessions early or late.
	ExpiryWall Expiry = "time of day"
)

// Failover says what a change of the store's leader can lose.
type Failover string

const (
	// FailoverNone: there is one server or none; it is there or it is not.
	FailoverNone Failover = "single"
	// FailoverSafe: what was granted is known to the next leader.
	FailoverSafe Failover = "keeps grants"
	// FailoverLoses: a replica that takes over may not know the last grants.
	FailoverLoses Failover = "may lose the last grants"
)

// Reach says who can share the store.
type Reach string

const (
	// ReachProcess is one process.
	ReachProcess Reach = "one process"
	// ReachMachine is all processes of one machine.
	ReachMachine Reach = "one machine"
	// ReachNetwork is every machine that reaches the store.
	ReachNetwork Reach = "network"
)
