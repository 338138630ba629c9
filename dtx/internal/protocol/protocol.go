// Package protocol is two-phase commit as pure functions: the coordinator of a transaction, and the verdicts of
// recovery. Package dtx does the actions and brings the events.
//
// A transaction is committed by one record in the log, and aborted without a record. The record can be written only while
// the coordinator's row in the log is not fenced. So recovery fences the row first. A record that is missing then
// is missing for ever. Recovery deletes a record only behind its fence. A coordinator that has fenced its own row,
// before any recovery did, thus learns from a missing record that nothing is committed.
package protocol

// MaxBranches is how many branches a transaction has at most.
const MaxBranches = 16

// Branch is what a coordinator knows of a branch.
type Branch int8

// The states of a branch.
const (
	Working  Branch = iota // the branch has not voted
	Prepared               // voted yes, and keeps that over a crash
	Ended                  // nothing is left to do: read only, or finished as decided
	Refused                // voted no, and is rolled back
	Lost                   // gave no answer: may be prepared, or become so
	Left                   // recovery has to finish it
)

// Phase says for which answers a coordinator waits.
type Phase int8

// The phases of a coordinator.
const (
	Preparing  Phase = iota // for votes
	Deciding                // for the log
	Asking                  // for the log, which is fenced and then read
	Committing              // for branches
	Aborting                // for branches
	Over                    // for nothing
)

// Outcome is the result that a caller learns.
type Outcome int8

// The outcomes.
const (
	Open      Outcome = iota
	Committed         // on all branches
	Aborted           // on all branches, or recovery does the rest
	Pending           // commit is decided, and recovery does the rest
	InDoubt           // the log did not say
)

// State is a coordinator's view of one transaction. The zero value with N set is a new one.
type State struct {
	N        int8 // branches, 1 to MaxBranches
	Phase    Phase
	Outcome  Outcome
	Branches [MaxBranches]Branch
}

// Kind is a kind of event.
type Kind int8

// The kinds of events. The first five are of one branch.
const (
	VotedYes      Kind = iota
	VotedReadOnly      // the branch has ended
	VotedNo
	Finished   // as decided
	NoAnswer   // to the last request to the branch
	LogWritten // the record is in the log
	LogRefused // the coordinator's row is fenced, and no record was written
	LogFound   // the record is there
	LogMissing // the coordinator has fenced its row itself, and there is no record
	LogSilent  // the log gave no answer, or recovery may have deleted the record
)

// Event is an answer, or that there is none.
type Event struct {
	Kind   Kind
	Branch int8
}

// Do is a kind of action.
type Do int8

// The kinds of actions.
const (
	Decide   Do = iota // write the record, if the coordinator's row is not fenced
	Ask                // fence the coordinator's row, unless recovery has, and look for the record in the same transaction
	Commit             // a branch
	RollBack           // a branch
	Forget             // delete the record at leisure, because all branches are committed
)

// Action is a thing that the coordinator has to do.
type Action struct {
	Do     Do
	Branch int8
}

// Step takes an event and returns the next state, and the actions to take. An event that the state does not wait for
// changes nothing, so late and repeated answers are harmless.
func (s State) Step(e Event) (State, []Action) {
	switch s.Phase {
	case Preparing:
		return s.vote(e)
	case Deciding, Asking:
		return s.log(e)
	case Committing, Aborting:
		return s.finish(e)
	}
	return s, nil
}

func (s State) vote(e Event) (State, []Action) {
	if s.Branches[e.Branch] != Working {
		return s, nil
	}
	switch e.Kind {
	case VotedYes:
		s.Branches[e.Branch] = Prepared
	case VotedReadOnly:
		s.Branches[e.Branch] = Ended
	case VotedNo:
		s.Branches[e.Branch] = Refused
	case NoAnswer:
		s.Branches[e.Branch] = Lost
	default:
		return s, nil
	}
	switch {
	case s.count(Working) > 0:
		return s, nil
	case s.count(Refused)+s.count(Lost) > 0:
		return s.end(Aborting)
	case s.count(Prepared) == 0: // nothing is to be decided
		return s.end(Committing)
	}
	s.Phase = Deciding
	return s, []Action{{Do: Decide}}
}

func (s State) log(e Event) (State, []Action) {
	switch {
	case e.Kind == LogFound, e.Kind == LogWritten && s.Phase == Deciding:
		return s.end(Committing)
	case e.Kind == LogMissing, e.Kind == LogRefused && s.Phase == Deciding:
		return s.end(Aborting)
	case e.Kind == LogSilent && s.Phase == Deciding:
		s.Phase = Asking
		return s, []Action{{Do: Ask}}
	case e.Kind == LogSilent:
		s.Phase, s.Outcome = Over, InDoubt
	}
	return s, nil
}

// end begins the second phase.
func (s State) end(phase Phase) (State, []Action) {
	var actions []Action
	s.Phase = phase
	for i := range s.N {
		switch is := s.Branches[i]; {
		case phase == Committing && is == Prepared:
			actions = append(actions, Action{Commit, i})
		case phase == Aborting && (is == Prepared || is == Lost):
			actions = append(actions, Action{RollBack, i})
			s.Branches[i] = Prepared // or is not; the branch owes an answer
		}
	}
	return s.over(actions)
}

func (s State) finish(e Event) (State, []Action) {
	switch {
	case s.Branches[e.Branch] == Prepared && e.Kind == Finished:
		s.Branches[e.Branch] = Ended
	case s.Branches[e.Branch] == Prepared && e.Kind == NoAnswer:
		s.Branches[e.Branch] = Left
	default:
		return s, nil
	}
	return s.over(nil)
}

// over sets the outcome if no branch owes an answer.
func (s State) over(actions []Action) (State, []Action) {
	if s.count(Prepared) > 0 {
		return s, actions
	}
	committed := s.Phase == Committing
	s.Phase = Over
	switch {
	case !committed:
		s.Outcome = Aborted
	case s.count(Left) > 0:
		s.Outcome = Pending
	default:
		s.Outcome = Committed
		actions = append(actions, Action{Do: Forget})
	}
	return s, actions
}

func (s State) count(is Branch) (n int) {
	for _, b := range s.Branches[:s.N] {
		if b == is {
			n++
		}
	}
	return n
}

// Row is a coordinator's row in the log.
type Row int8

// The states of a row.
const (
	Unknown Row = iota // there is no row: the log has lost rows
	Live               // the coordinator may decide
	Fenced             // the coordinator can decide nothing more
)

// Own returns the row of a coordinator as recovery in its own process takes it for one of its transactions. Open says that
// the transaction is not over, and retired that the coordinator has got no answer to some decision. Row is as recovery of any
// other process takes it.
func Own(open, retired bool, row Row) Row {
	switch {
	case open:
		return Live
	case retired, row == Unknown: // that decision may be on its way still, or the log is lost
		return row
	}
	return Fenced // each decision was answered, so the log has all records
}

// Verdict is what recovery does with a branch that is prepared.
type Verdict int8

// The verdicts.
const (
	Refuse   Verdict = iota // nothing: an operator has to decide
	Wait                    // nothing: the coordinator may be at work
	Complete                // commit
	Undo                    // roll back
)

// Judge returns the verdict on a branch that was listed as prepared before row and record were read, in this order.
func Judge(row Row, record bool) Verdict {
	switch {
	case row == Live: // the coordinator finishes the branch itself
		return Wait
	case record:
		return Complete
	case row == Fenced:
		return Undo
	}
	return Refuse
}

// Answer is what the log says to an operator who wants a transaction to be committed or rolled back.
type Answer int8

// The answers.
const (
	Contradicted Answer = iota // the log says otherwise, or the coordinator may still decide otherwise
	Agreed                     // the log says the same, so recovery does it
	FenceFirst                 // the coordinator can be kept from deciding: fence its row, and ask again
	Heuristic                  // the log does not know, so the operator decides
)

// Resolve returns the answer to an operator. Row was read before record.
func Resolve(row Row, record, commit bool) Answer {
	switch {
	case record && commit, row == Fenced && !record && !commit:
		return Agreed
	case record, commit && row != Unknown:
		return Contradicted
	case row == Live:
		return FenceFirst
	}
	return Heuristic
}

// CanForget reports whether recovery may delete a record. The branches were listed after the record was read, and none
// of that transaction is prepared.
func CanForget(row Row) bool { return row == Fenced }
