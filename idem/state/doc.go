// Package state moves a row of a table from one state to the next, once, whatever is retried.
//
// A [Machine] has the states and transitions, declared once and checked by [New]. A [Table]
// applies a transition by one guarded UPDATE:
//
//	UPDATE orders SET state = 'paid' WHERE id = 7 AND state IN ('created')
//
// Of all callers that apply a transition to a row, exactly one is told [Moved]. A caller whose
// request comes again is told [Repeated], or [Passed] when the row has gone on since. Neither
// is an error, and nothing is written then. A transition that is not declared is an
// [IllegalError], which names both states. So write the effect in the same transaction, and
// only when the row was moved:
//
//	result, err := table.Apply(ctx, tx, state.Columns{"id": 7}, Paid, nil)
//	if err == nil && result.Outcome == state.Moved {
//		... // the effect, in tx
//	}
//
// # Which calls are repeats
//
// The row has only its present state. A call for state X is a repeat when the row must have
// been in X. Either the row is there now, or no way from the first state to the present state
// leads around X. Where some ways lead through X and some do not, nobody can tell, and the call
// is illegal. This is the relation "dominates" of flow graphs (Prosser, 1959).
//
// A state that lies on a cycle can be entered again, as in "active, paused, active". There a
// late repeat looks like a new request. So [Table.Apply] refuses these states, and
// [Table.ApplyAt] moves the row at the version that the caller has read. A row with a version
// and no states needs no machine: see UpdateIfVersion in package sqlfence.
//
// [Ranked] declares states that only rise, such as 0, 99, 100. Ranks may be left out, and a
// late message of a lower rank is [Passed].
//
// # The four cases of a single row
//
//	statement  made idempotent by                                   a repeat
//	create     a unique key of the content, or of the request:      finds the row; the caller compares
//	           INSERT, ON CONFLICT DO NOTHING                       its content, or it is another request
//	update     a set value is idempotent: SET state = 'paid', but   Repeated or Passed here; the effect
//	           only guarded by state, rank or version. SET n = n - 1 is not written again
//	           is not: write it with a state, in one transaction
//	delete     the key alone: DELETE WHERE id = 7; or a state       affects no row, which is success;
//	           "deleted", where a late create must not bring it back  Repeated with the state
//	read       nothing: it writes nothing                           may see a later state
//
// # What is not promised
//
//   - All writers of the state column have to use the machine, and rows are inserted in its
//     first state. Otherwise a repeat may be told where the transition never happened.
//   - A trigger that sets the state back makes the outcome wrong: the database counts the row as moved, and Apply believes that.
//   - Two transitions into one state are one goal: Apply does not tell a customer's "cancelled"
//     from an operator's. Where that matters, declare two states.
//   - An error of the database that came while ctx ended or the connection broke says nothing.
//     Apply again: the outcome is right, and Repeated may then mean this caller's own first try.
//
// Any isolation level will do. From REPEATABLE READ on, PostgreSQL may answer with a
// serialization failure instead, MySQL with a deadlock at any level, and SQLite with a busy
// file. Then the caller repeats the transaction, see Again in package dialect. On MySQL a call
// that moves nothing locks the row until the transaction ends.
package state
