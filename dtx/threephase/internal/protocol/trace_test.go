package protocol

import (
	"fmt"
	"strings"
)

// tell says the steps of a trail in plain English, a line each.
func (x *explorer) tell(w world, trail []step) string {
	var lines strings.Builder
	for i, st := range trail {
		next := x.take(w, st)
		fmt.Fprintf(&lines, "%2d. Agent %d %s.\n", i+1, st.agent, says(w.agents[st.agent], next.agents[st.agent], st))
		w = next
	}
	return lines.String()
}

// says describes a step of an agent that was one thing before, and is another after.
func says(before, after State, st step) string {
	did := effect(before, after)
	switch {
	case st.crash == only:
		return "crashes and restarts"
	case st.crash == asDecider:
		return "crashes, restarts and decides by its own record: it " + did
	case st.crash == halfway:
		return cause(st.event, before) + ", answers, and crashes before its record is stored"
	case did == "":
		return cause(st.event, before)
	}
	return cause(st.event, before) + ", and " + did
}

func cause(e Message, before State) string {
	switch e.Kind {
	case VoteYes:
		return "votes yes"
	case VoteNo:
		return "votes no"
	case TimeOut:
		return "hears nothing for a while"
	case Yes:
		return fmt.Sprintf("hears the yes of agent %d", e.Peer)
	case PreCommit, PreAbort:
		return fmt.Sprintf("hears the %s of agent %d", move(e.Kind == PreCommit, e.Election), e.Peer)
	case Ack:
		return fmt.Sprintf("hears that agent %d has stored the %s", e.Peer, move(before.Phase == PreCommitted, e.Election))
	case Elect:
		return fmt.Sprintf("hears of election %d of agent %d", e.Election, e.Peer)
	case Joined:
		return fmt.Sprintf("hears that agent %d has joined election %d and %s", e.Peer, e.Election, stands(e.Phase, e.Attempt))
	case Commit:
		return "hears of the commit"
	}
	return "hears of the abort"
}

func move(commit bool, e Election) string {
	if commit {
		return fmt.Sprintf("pre-commit of election %d", e)
	}
	return fmt.Sprintf("pre-abort of election %d", e)
}

func stands(p Phase, attempt Election) string {
	if p == Ready {
		return "is ready"
	}
	return "has stored the " + move(p == PreCommitted, attempt)
}

func effect(before, after State) string {
	switch {
	case after.Phase == Committed && before.Phase != Committed:
		return "commits"
	case after.Phase == Aborted && before.Phase != Aborted:
		return "aborts"
	case after.Role == Voting && before.Role != Voting:
		return "asks the others for their votes"
	case after.Role == Electing && after.Elected != before.Elected:
		return fmt.Sprintf("calls election %d", after.Elected)
	case after.Role == Attempting && before.Role != Attempting:
		return fmt.Sprintf("stores and sends the %s", move(after.Phase == PreCommitted, after.Elected))
	case after.Attempt != before.Attempt || after.Phase != before.Phase && after.Phase > Ready:
		return "stores and acknowledges it"
	case after.Elected != before.Elected && before.Phase != Initial:
		return "joins it: the agent " + stands(after.Phase, after.Attempt)
	}
	return ""
}
