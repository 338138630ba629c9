package protocol

import "math/bits"

// The largest world that is explored.
const (
	mostAgents    = 5
	mostElections = 15
)

// way is a naive way to do a step.
type way int8

const (
	right            way = iota
	noElected            // agents follow each election, also an earlier election than the last
	electedForgotten     // agents forget in a crash which election they joined
	noAttempt            // a pre-commit counts more than a pre-abort, whichever was later
	noPreAbort           // an election that finds no pre-commit aborts at once
	noQuorum             // a time-out stands for the answer of another agent
	halfQuorum           // half of the agents are enough
	allAgents            // an election waits for all agents
	twoPhase             // two-phase commit: all votes are the decision, and bound agents wait for the coordinator
	earlyAck             // an acknowledgement is sent before the record is stored
	earlyVote            // a yes is sent before the record is stored
	earlyAnswer          // any message is sent before the record is stored
	looseVote            // an agent that voted yes gives up after a time-out
	restartDecides       // an agent that restarts decides by its own record
)

// world is all agents, and the messages on their way. A message stays on its way, so it may come late, twice, or never. An
// agent that is down or cut off takes no steps for a while. An agent that crashes and restarts keeps its record only. A
// step is atomic, because a message that a crash kept from being sent is like a message that never comes.
type world struct {
	n      int8
	agents [mostAgents]State
	cut    uint8 // no message comes from these agents to the others, or back; 0: the network is whole

	can, commit, abort bool                                       // to any agent
	yes                uint8                                      // a bit for each sender
	elect, pre, back   uint16                                     // Elect, PreCommit and PreAbort: a bit for each election
	joined             [mostElections + 1][mostAgents]joinedReply // by election and sender
	ack                [mostAgents]uint16                         // by sender, a bit for each election
}

// joinedReply is a message Joined; the zero value is none.
type joinedReply struct{ phase, attempt int8 }

// step is a step of one agent.
type step struct {
	agent int8
	event Message
	crash crash
	cut   uint8 // nothing but this cut happens
	heal  bool  // nothing happens but the end of the cut
}

// crash says when the agent of a step crashes, and restarts.
type crash int8

const (
	none      crash = iota
	only            // the step is nothing else
	halfway         // the messages are sent, and the record is not stored
	asDecider       // the restarted agent decides
)

func first(mode Mode, n int8) (w world) {
	w.n = n
	for i := range n {
		w.agents[i] = New(mode, i, n, Record{})
	}
	return w
}

// owner is the agent that calls an election.
func (w *world) owner(e Election) int8 { return int8(int32(e-1) % int32(w.n)) }

// explorer takes the steps of worlds.
type explorer struct {
	way
	elections Election // the largest number of an election
	keeps     bool     // keep the messages that no agent will ever take
	cuts      bool     // the only fault is a cut of the network: see onlyCut
	next      []step   // of the world at hand
}

// all returns the steps that the world can take. The slice is valid until the next call.
func (x *explorer) all(w *world) []step {
	x.next = x.next[:0]
	for i := range w.n {
		s := &w.agents[i]
		if s.Phase.Final() {
			continue // it changes nothing more, and its decision is on its way
		}
		x.own(w, s)
		x.received(w, s)
	}
	for _, st := range x.next {
		if x.early(st.event.Kind) && st.crash == none {
			st.crash = halfway
			x.next = append(x.next, st)
		}
	}
	if x.cuts {
		x.onlyCut(w)
	}
	return x.next
}

// early reports whether the messages of a step are sent before the record is stored.
func (x *explorer) early(k Kind) bool {
	switch x.way {
	case earlyAck:
		return k == PreCommit || k == PreAbort
	case earlyVote:
		return k == VoteYes
	}
	return x.way == earlyAnswer
}

func (x *explorer) add(s *State, kind Kind, from int8, e Election) {
	x.next = append(x.next, step{agent: s.Self, event: Message{Kind: kind, Peer: from, Election: e}})
}

// own adds the steps of an agent that need no message.
func (x *explorer) own(w *world, s *State) {
	if s.Phase == Initial && (s.Self == 0 || w.can) {
		x.add(s, VoteYes, s.Self, 0)
		x.add(s, VoteNo, s.Self, 0)
	}
	if s.Phase == Initial || s.Role == Voting || s.Mode == Classic || s.nextElection() <= x.elections {
		x.add(s, TimeOut, s.Self, 0)
	} else if x.way == noQuorum && s.Role != Participant {
		x.add(s, TimeOut, s.Self, 0)
	}
	if s.Role != Participant || x.way == electedForgotten {
		x.next = append(x.next, step{agent: s.Self, crash: only})
	}
	if x.way == restartDecides && s.Phase != Initial {
		x.next = append(x.next, step{agent: s.Self, crash: asDecider})
	}
}

// received adds the steps of an agent with messages that are on their way to it.
func (x *explorer) received(w *world, s *State) {
	if w.commit {
		x.add(s, Commit, All, 0)
	}
	if w.abort {
		x.add(s, Abort, All, 0)
	}
	for e := Election(1); e <= x.elections; e++ {
		owner := w.owner(e)
		if owner != s.Self {
			for kind, bits := range [...]uint16{w.pre, w.back, w.elect} {
				if bits>>e&1 != 0 {
					x.add(s, [...]Kind{PreCommit, PreAbort, Elect}[kind], owner, e)
				}
			}
			continue
		}
		for j := range w.n {
			if w.ack[j]>>e&1 != 0 {
				x.add(s, Ack, j, e)
			}
			if r := w.joined[e][j]; r != (joinedReply{}) {
				x.next = append(x.next, step{agent: s.Self, event: Message{Joined, j, e, Phase(r.phase), Election(r.attempt)}})
			}
		}
	}
	for j := int8(1); j < w.n && s.Self == 0; j++ {
		if w.yes>>j&1 != 0 {
			x.add(s, Yes, j, 0)
		}
	}
}

// take takes a step.
func (x *explorer) take(w world, st step) world {
	x.change(&w, st)
	return w
}

// follow makes next the world after a step, without messages that make no difference. The result is whether
// anything changed.
func (x *explorer) follow(w, next *world, st step) bool {
	*next = *w
	if !x.change(next, st) {
		return false
	}
	if x.way == right && w.agents[0].Mode == Quorum && !x.keeps {
		next.clean(x.elections)
	}
	return true
}

// change takes a step, and reports whether it changed anything.
func (x *explorer) change(w *world, st step) bool {
	if st.cut != 0 || st.heal {
		w.cut = st.cut
		return true
	}
	s := w.agents[st.agent]
	if st.crash != only && st.crash != asDecider {
		return x.run(w, s, st.event, st.crash)
	}
	w.agents[st.agent] = New(s.Mode, s.Self, s.N, s.Record)
	switch {
	case st.crash == asDecider && s.Phase == PreCommitted:
		x.run(w, s, Message{Kind: Commit}, none)
	case st.crash == asDecider:
		x.run(w, s, Message{Kind: Abort}, none)
	case x.way == electedForgotten:
		w.agents[st.agent].Elected = s.Attempt
	}
	return true
}

// run is a step of one agent, in the right way or in a naive one.
func (x *explorer) run(w *world, s State, e Message, c crash) bool {
	before := s
	if x.way != right {
		s, e = x.naively(s, e)
	}
	next, messages := x.step(s, e)
	switch {
	case x.way == noAttempt && next.Phase == PreCommitted:
		next.Attempt = 2
	case x.way == noAttempt && next.Phase == PreAborted:
		next.Attempt = 1
	case x.way == noPreAbort && next.Phase == PreAborted:
		next, messages, _ = s.end(Aborted)
	}
	if c == halfway {
		next = New(s.Mode, s.Self, s.N, before.Record)
	}
	w.agents[s.Self] = next
	for _, m := range messages {
		w.send(s.Self, m)
	}
	return len(messages) > 0 || next != before
}

// step is State.Step, or a naive form of it that needs the state.
func (x *explorer) step(s State, e Message) (State, []Message) {
	if x.way == twoPhase && e.Kind == TimeOut && s.Phase == Ready && s.Role == Participant {
		return s, nil
	}
	if e.Election == s.Elected && (e.Kind == Joined && s.Role == Electing || e.Kind == Ack && s.Role == Attempting) {
		switch heard := s.Heard | 1<<e.Peer; {
		case x.way == halfQuorum && 2*bits.OnesCount8(heard) >= int(s.N):
			s.Heard = 1<<s.N - 1
		case x.way == allAgents && bits.OnesCount8(heard) < int(s.N):
			s.Heard = heard
			return s, nil
		}
	}
	next, messages, _ := s.Step(e)
	if x.way == twoPhase && next.Phase == PreCommitted {
		next, messages, _ = s.end(Committed)
	}
	return next, messages
}

// naively changes the state or the event, so that a right step becomes a naive one.
func (x *explorer) naively(s State, e Message) (State, Message) {
	switch {
	case x.way == noElected && (e.Kind == PreCommit || e.Kind == PreAbort):
		s.Elected = 0
	case x.way == noElected && e.Kind == Elect && s.Phase != Initial:
		s.Elected = e.Election - 1
	case x.way == looseVote && e.Kind == TimeOut && s.Phase == Ready:
		e.Kind = Abort
	case x.way == noQuorum && e.Kind == TimeOut && s.Role == Electing:
		e = Message{Joined, (s.Self + 1) % s.N, s.Elected, Ready, 0}
	case x.way == noQuorum && e.Kind == TimeOut && s.Role == Attempting:
		e = Message{Kind: Ack, Peer: (s.Self + 1) % s.N, Election: s.Elected}
	}
	return s, e
}

// send puts a message on its way. A decision is on its way to all agents, because each agent may ask for it.
func (w *world) send(from int8, m Message) {
	switch m.Kind {
	case CanCommit:
		w.can = true
	case Yes:
		w.yes |= 1 << from
	case PreCommit:
		w.pre |= 1 << m.Election
	case PreAbort:
		w.back |= 1 << m.Election
	case Ack:
		w.ack[from] |= 1 << m.Election
	case Elect:
		w.elect |= 1 << m.Election
	case Joined:
		w.joined[m.Election][from] = joinedReply{int8(m.Phase), int8(m.Attempt)}
	case Commit:
		w.commit = true
	case Abort:
		w.abort = true
	}
}

// clean removes the messages that no agent will ever take, and the parts of records that nothing reads. No step
// of an agent that does it right depends on them.
func (w *world) clean(elections Election) {
	waits := false // an agent has not voted
	for i := range w.n {
		s := &w.agents[i]
		if s.Phase.Final() {
			s.Elected, s.Attempt = 0, 0
			continue
		}
		waits = waits || s.Phase == Initial
	}
	w.can = w.can && waits
	if w.agents[0].Role != Voting {
		w.yes = 0
	}
	w.yes &^= w.agents[0].Heard
	for e := Election(1); e <= elections; e++ {
		w.cleanElection(e, 1<<e)
	}
}

// cleanElection removes the messages of one election.
func (w *world) cleanElection(e Election, bit uint16) {
	owner := w.owner(e)
	o := &w.agents[owner]
	elects, follows := false, false // an agent would join, or follow
	for i := range w.n {
		s := &w.agents[i]
		if i == owner || s.Phase.Final() {
			continue
		}
		elects = elects || s.Elected < e
		follows = follows || s.Elected <= e && s.Attempt < e
	}
	if !elects {
		w.elect &^= bit
	}
	if !follows {
		w.pre, w.back = w.pre&^bit, w.back&^bit
	}
	for i := range w.n {
		if o.Role != Attempting || o.Attempt != e || o.Heard>>i&1 != 0 {
			w.ack[i] &^= bit
		}
		if o.Role != Electing || o.Elected != e || o.Heard>>i&1 != 0 {
			w.joined[e][i] = joinedReply{}
		}
	}
}

// split names the fault of a world in which the agents do not agree.
func (w *world) split() string {
	var some [Aborted + 1]bool
	for i := range w.n {
		some[w.agents[i].Phase] = true
	}
	switch {
	case some[Committed] && some[Aborted]:
		return "one agent has committed, and another has aborted"
	case some[Committed] && some[Initial]:
		return "an agent has committed before all voted yes"
	}
	return ""
}
