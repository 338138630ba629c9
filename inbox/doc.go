// Package inbox lets a message take effect once, however often a broker delivers it. This is the idempotent consumer, the
// other end of package outbox.
//
//	box, err := inbox.New("billing", nil)
//	...
//	repeat, err := box.Do(ctx, store.In(tx), message, func(ctx context.Context) error {
//		return bill(ctx, tx, message) // writes in tx only
//	})
//	if err != nil { ... }
//	if err := tx.Commit(); err != nil { ... }
//	// acknowledge the message now, and not before
//
// [Inbox.Do] keeps the ID of the message in the caller's transaction, by package idem. Package sqlidem makes the
// transaction an [idem.Tx], and package pgxtx lets it be one of pgx. One commit has the effect and the ID. Sweep the
// table by the Sweep method of the store.
//
// A [Consumer] does the rest. The consumer takes messages from a [Source], runs a handler in transactions of a *sql.DB, and
// acknowledges after the commit. The packages below this one are sources.
//
// # What is promised
//
//   - For each name of an inbox and each ID of a message, the effects of one run are committed. Repeats are
//     acknowledged and do not run.
//   - Of messages with one ID and another key or payload, one takes effect. Each of the others becomes a dead letter, also if all come at once.
//   - A message is acknowledged after the commit. A consumer that dies leaves its messages to others.
//   - A message whose Time is older than the retention never runs, because the note of its first run may be gone. The
//     consumer turns it into a dead letter.
//   - A message whose Time is more than [MaxAhead] ahead of the clock here waits until the clock comes near, and so does its key. OnError tells
//     of each such message, because one of the clocks is wrong. A webhook does not take such a message.
//   - Messages of a key run one after another, in the order in which this process receives them. A message that fails is
//     tried again after a wait, before the later messages of its key. All other keys go on.
//   - A message that fails ConsumerOptions.MaxAttempts times becomes a dead letter with the reason, and its key goes on.
//     Trouble with the database or the broker counts no attempt, and neither does a run that ends because Run ends.
//
// # Replies
//
// ConsumerOptions.Reply tells the producer that a message took effect, by a message or a request of your own. The producer
// marks the message as done, see outbox.Table.Complete, and sends a message again that is not done for long.
//
// A dead letter has no reply. With RelayOptions.Resend the relay sends the message again, and each repeat becomes a dead letter again. An
// operator or a program that reads dead letters ends that by outbox.Table.Complete.
//
// # Order over several processes
//
// A broker spreads messages over all processes that read. So two messages of a key may be in two processes. Set
// ConsumerOptions.Single to let one process read at a time, under a lock of pawl. The next process begins with the
// messages that the last one has not acknowledged, in the order of the broker. So the first effects of a key keep the order of the
// broker through every crash. A dead letter is left out of that order. A key waits for a message that the broker delivers
// again after its last attempt. The wait is 5 min and twice Feed.Hold at most, and the wait before the next attempt.
//
// # What is not promised
//
// Effects outside of the database happen again when a transaction is repeated. The clocks of the producer's database, of the
// consumer and of its database have to agree to an hour. While a message of a key fails, the later messages of the key are parked in this
// process, so that other keys go on. With Redis a parked message is in memory by its ID only, and its content is read again for its run. Each source
// bounds how many messages a process has. A key that fails with as many stops all other keys, until the message becomes a dead letter. The failures of a
// message are counted in this process only.
package inbox
