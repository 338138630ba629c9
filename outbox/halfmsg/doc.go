// Package halfmsg sends messages with transactions of databases that have no table of messages. RocketMQ calls such a message
// a half message of a transaction, and DTM calls the exchange a two-phase message.
//
// A coordinator has the table of messages, see package outbox. A producer has a [Barrier], a small table in its own database.
//
//	producer                          coordinator
//	Prepare(messages)          ---->  half message: prepared, not sent
//	BEGIN
//	  Barrier.Pass(id)                one row, unique
//	  business rows
//	COMMIT
//	Submit(id)                 ---->  submitted: the messages are in the outbox
//
// [Send] does all of that. If the submission is lost, the coordinator asks back, and [Barrier.Answer] decides.
//
// # The answer
//
// The answer is decided by an insert of the row that the transaction inserts, too. That insert waits while the transaction is open. If the
// transaction was committed, its row is there, and the messages are submitted. If the insert wins, the transaction is rolled
// back, or has not come so far. Then the half message is aborted for good: a transaction that comes later finds the row and
// fails with [ErrAborted]. So no answer depends on a clock. A transaction that is prepared and in doubt delays the answer and never
// changes it.
//
// # What is promised
//
//   - The messages are sent if and only if the transaction is committed. Then they are as all messages of the outbox.
//   - No message is lost and none is sent for nothing, whatever process is killed between any two steps.
//   - A producer that is away delays the answers about its own half messages, and no others. The coordinator asks for ever.
//
// The database of the barrier must not lose commits, and [Barrier.Answer] needs the primary. A producer that is away for longer
// than BarrierOptions.Retention gets [ErrTooOld] for an answer, and an operator decides by Submit or Abort.
//
// A server of MySQL or MariaDB that becomes read-only at a switchover keeps its connections. Call SetConnMaxLifetime of your *sql.DB with 30 s or
// so: else [Coordinator.Run] stays there, and sends nothing.
package halfmsg
