// Package protocol is three-phase commit between agents, as a pure function. The caller of [State.Step] keeps time,
// stores records and carries messages.
//
// Mode [Quorum] is the enhanced three-phase commit of Keidar and Dolev (Journal of Computer and System Sciences 57,
// 1998). An agent that has voted yes never decides alone. When answers stay away, an agent calls an election: a new number, which a majority
// has to join. A joined agent promises to ignore all smaller numbers, and tells its last attempt. The new
// coordinator attempts what the latest of these attempts was, or an abort if there was none. A decision stands when a majority has
// stored the attempt. Any two majorities share an agent, so no later election can decide otherwise.
//
// Mode [Classic] is the three-phase commit of the textbooks, in which time-outs decide. A partition splits its decisions.
package protocol

import "math/bits"

// MaxAgents is how many agents a transaction has at most.
const MaxAgents = 7

// Mode says what an agent does when answers stay away.
type Mode int8

// The modes.
const (
	Quorum  Mode = iota // ask a majority
	Classic             // decide alone, as the textbooks have it: unsafe in a partition
)

// Phase is how far an agent is.
type Phase int8

// The phases. The last two are final.
const (
	Initial      Phase = iota // has not voted, and may still vote no
	Ready                     // has voted yes, and is bound to that
	PreCommitted              // knows that all agents voted yes
	PreAborted                // knows that an election attempts to abort
	Committed
	Aborted
)

// Final reports whether the phase is a decision.
func (p Phase) Final() bool { return p >= Committed }

// Election is the number of an election. Number 1 is the first coordinator's, without a vote. Each number belongs to
// one agent, so no two agents ever call the same election.
type Election int32

// Record is the part of the state of an agent that survives a crash.
type Record struct {
	Phase   Phase
	Elected Election // the last election that the agent joined: smaller ones are ignored
	Attempt Election // the election of the last pre-commit or pre-abort; 0: none
}

// Role is what a coordinator waits for. A crash ends the role.
type Role int8

// The roles.
const (
	Participant Role = iota // no coordinator
	Voting                  // for the votes of all agents
	Electing                // for a majority that joins
	Attempting              // for a majority that has stored the attempt
)

// State is an agent's view of one transaction. [New] makes it.
type State struct {
	Record
	Mode  Mode
	Self  int8 // the number of this agent; agent 0 is the first coordinator
	N     int8 // agents
	Role  Role
	Heard uint8  // the agents that have answered in this role, a bit each
	Best  Record // the latest attempt of the agents that joined, in role Electing
}

// Kind is a kind of event or message.
type Kind int8

// The kinds. The first three are events only, and the others are messages too.
const (
	VoteYes   Kind = iota // the handler of this agent can commit, and keeps that over a crash
	VoteNo                // the handler of this agent cannot commit
	TimeOut               // nothing came for a while
	CanCommit             // asks for the vote; its receiver asks its handler, and takes VoteYes or VoteNo then
	Yes
	PreCommit // of an election
	PreAbort  // of an election
	Ack       // the agent has stored the pre-commit or pre-abort of an election
	Elect     // calls an election
	Joined    // the agent has joined, and tells its phase and last attempt
	Commit    // is decided
	Abort     // is decided
)

// All is the receiver of a message to every other agent.
const All = -1

// Message is sent to an agent, or received from it.
type Message struct {
	Kind     Kind
	Peer     int8     // the receiver, or All; of an event the sender
	Election Election // of PreCommit, PreAbort, Ack, Elect and Joined
	Phase    Phase    // of Joined
	Attempt  Election // of Joined
}

// Decision is a result of the transaction.
type Decision int8

// The decisions.
const (
	Undecided Decision = iota
	ToCommit
	ToAbort
)

// New returns the state of an agent with a record of the log. The zero record is that of an agent that has not voted.
// An agent that restarts takes its last record, and then a TimeOut when it does not hear of the decision.
func New(mode Mode, self, n int8, r Record) State {
	return State{Record: r, Mode: mode, Self: self, N: n}
}

// Step takes an event, and returns the next state, the messages to send, and the decision if this step brought it.
// The caller stores a changed Record durably, before it sends the messages and acts on the decision. Messages may be
// lost, late and repeated. The caller sets a timer while the phase is not final, and checks that a sender is an agent
// of the transaction.
func (s State) Step(e Message) (State, []Message, Decision) {
	if s.Phase.Final() {
		return s.answer(e)
	}
	switch e.Kind {
	case VoteYes:
		return s.vote()
	case VoteNo:
		if s.Phase == Initial {
			return s.end(Aborted)
		}
	case Abort:
		return s.told(Aborted)
	case Commit:
		if s.Phase != Initial { // else this agent has lost its log, or the sender is no agent
			return s.told(Committed)
		}
	case TimeOut:
		return s.timeOut()
	case Yes:
		if s.Role == Voting && s.heardAll(&e) {
			return s.attempt(PreCommitted)
		}
	case PreCommit, PreAbort:
		return s.take(e)
	case Ack:
		if s.Role == Attempting && e.Election == s.Elected && s.heardEnough(&e) {
			return s.end(s.Phase + Committed - PreCommitted)
		}
	case Elect:
		return s.join(e)
	case Joined:
		if s.Role == Electing && e.Election == s.Elected {
			return s.count(e)
		}
	}
	return s, nil, Undecided
}

// answer tells the decision to an agent that does not know it.
func (s State) answer(e Message) (State, []Message, Decision) {
	switch e.Kind {
	case VoteYes, VoteNo, TimeOut, Ack, Commit, Abort:
		return s, nil, Undecided
	}
	return s, []Message{{Kind: s.decided(), Peer: e.Peer}}, Undecided
}

func (s State) decided() Kind {
	if s.Phase == Committed {
		return Commit
	}
	return Abort
}

func (s State) vote() (State, []Message, Decision) {
	if s.Phase != Initial {
		return s, nil, Undecided
	}
	s.Phase, s.Elected = Ready, 1
	if s.Self != 0 {
		return s, []Message{{Kind: Yes, Peer: 0}}, Undecided
	}
	s = s.as(Voting)
	return s, []Message{{Kind: CanCommit, Peer: All}}, Undecided
}

// timeOut of an agent that has not voted, or that has not all votes, is an abort: nobody can have pre-committed.
func (s State) timeOut() (State, []Message, Decision) {
	switch {
	case s.Phase == Initial, s.Role == Voting:
		return s.end(Aborted)
	case s.Mode == Classic && s.Phase == Ready:
		return s.end(Aborted)
	case s.Mode == Classic:
		return s.end(Committed)
	}
	s.Elected = s.nextElection()
	s = s.as(Electing)
	s.Best = s.Record
	return s, []Message{{Kind: Elect, Peer: All, Election: s.Elected}}, Undecided
}

// nextElection is the smallest number of this agent that is larger than all that the agent knows.
func (s State) nextElection() Election {
	n := Election(s.N)
	next := s.Elected/n*n + Election(s.Self) + 1
	for next <= s.Elected {
		next += n
	}
	return next
}

// join promises to ignore all smaller elections. An agent that has not voted votes no by that, because it could
// otherwise vote yes behind the back of the election.
func (s State) join(e Message) (State, []Message, Decision) {
	switch {
	case s.Mode == Classic:
		return s, nil, Undecided
	case s.Phase == Initial:
		return s.end(Aborted)
	case e.Election <= s.Elected:
		return s, nil, Undecided
	}
	s.Elected = e.Election
	s = s.as(Participant)
	return s, []Message{{Joined, e.Peer, s.Elected, s.Phase, s.Attempt}}, Undecided
}

// count takes an agent that has joined. A majority is enough: a decision is an attempt that a majority has stored.
func (s State) count(e Message) (State, []Message, Decision) {
	if e.Attempt > s.Best.Attempt {
		s.Best = Record{Phase: e.Phase, Attempt: e.Attempt}
	}
	if !s.heardEnough(&e) {
		return s, nil, Undecided
	}
	if s.Best.Phase == PreCommitted {
		return s.attempt(PreCommitted)
	}
	return s.attempt(PreAborted)
}

// attempt moves this coordinator, and asks all others to follow.
func (s State) attempt(to Phase) (State, []Message, Decision) {
	s.Phase, s.Attempt = to, s.Elected
	s = s.as(Attempting)
	kind := PreCommit
	if to == PreAborted {
		kind = PreAbort
	}
	return s, []Message{{Kind: kind, Peer: All, Election: s.Elected}}, Undecided
}

// take follows an attempt, unless this agent has joined a later election.
func (s State) take(e Message) (State, []Message, Decision) {
	switch {
	case s.Phase == Initial && e.Kind == PreAbort:
		return s.end(Aborted)
	case s.Phase == Initial, e.Election < s.Elected:
		return s, nil, Undecided
	}
	s.Phase = PreCommitted
	if e.Kind == PreAbort {
		s.Phase = PreAborted
	}
	s.Elected, s.Attempt = e.Election, e.Election
	s = s.as(Participant)
	return s, []Message{{Kind: Ack, Peer: e.Peer, Election: e.Election}}, Undecided
}

// as takes up a role, in which this agent has heard of itself only.
func (s State) as(role Role) State {
	s.Role, s.Heard, s.Best = role, 0, Record{}
	if role != Participant {
		s.Heard = 1 << s.Self
	}
	return s
}

func (s *State) heardAll(e *Message) bool {
	s.Heard |= 1 << e.Peer
	return bits.OnesCount8(s.Heard) == int(s.N)
}

func (s *State) heardEnough(e *Message) bool {
	all := s.heardAll(e)
	return all || s.Mode == Quorum && bits.OnesCount8(s.Heard) > int(s.N)/2
}

// told takes the decision of another agent. That agent has told the others too, or they ask when they time out.
func (s State) told(to Phase) (State, []Message, Decision) {
	s, _, decision := s.end(to)
	return s, nil, decision
}

func (s State) end(to Phase) (State, []Message, Decision) {
	s.Phase = to
	s = s.as(Participant)
	decision := ToAbort
	if to == Committed {
		decision = ToCommit
	}
	return s, []Message{{Kind: s.decided(), Peer: All}}, decision
}
