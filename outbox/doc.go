// Package outbox sends messages that are committed together with the rows of a business transaction. This is the local
// message table, or transactional outbox.
//
//	ids, err := table.Enqueue(ctx, tx, outbox.Message{Topic: "orders", Key: "order-7", Payload: data})
//	if err != nil { ... }
//	if err := tx.Commit(); err != nil { ... }
//	relay.Wake()
//
// A [Relay] reads the table and hands the messages to a [Publisher]. Any number of processes may run a relay. The table
// is in PostgreSQL, MySQL, MariaDB or SQLite; call [Table.Migrate] when the program starts.
//
// # What is promised
//
//   - A message is sent if its transaction is committed, and only then.
//   - Each message is sent at least once. The relay marks a message when the broker has confirmed it, and sends it again if the
//     outcome is unknown. Consumers recognise repeats by Message.ID. A database that is away costs no repeat
//     while the relay keeps its partitions.
//   - The first sendings of the messages of a key are in the order in which they were enqueued. That is so if the producers
//     serialise on the key before they enqueue, for example by a lock on the row of the order. A repeat of an earlier
//     message may still come later.
//   - A broker that is away makes no message dead, however long that takes, if MaxAttempts is 3 or more.
//   - A message that fails MaxAttempts times is dead. The later messages of its key wait until an operator calls
//     [Table.Requeue], and all other keys go on. RelayOptions.ContinueKeys lets the key go on.
//   - A producer's transaction that stays open for long stops no other message. Such a transaction may be prepared and in doubt.
//     SQLite has one writer: there the relay marks nothing while a transaction has the file. A transaction with a completion
//     may hold up its key, see [Table.Complete].
//   - With RelayOptions.Resend a confirmed message is sent again and again until its consumer has said that the message is
//     done, by [Table.Complete]. So also a message that the broker or the consumer has lost takes effect.
//
// # Completion
//
// The consumer replies after the commit of its effect, by a message or by HTTP, and the producer calls [Table.Complete]. A consumer
// that absorbs a repeat replies as well, because the first reply may be lost. The later messages of a key wait for the
// confirm, and not for the completion. Resend has to be longer than consumers usually take. The same holds for the time
// in which a broker drops repeats of an ID by itself. JetStream does so for 2 min as shipped.
//
// # How
//
// A table has 16 partitions, and the hash of the key says which one a message is in. A relay holds partitions as
// [pawl.Slots] with fencing tokens. A broker cannot check tokens, so a relay that was frozen may repeat messages. The token
// guards the table: a relay that has lost its partition can mark nothing, and so sends no further message of a key. Each
// statement of a relay is a transaction of its own, so that a frozen relay keeps no lock that its successor needs.
//
// With go-sql-driver, set InterpolateParams for the relay's database handle: else each statement with parameters is prepared first.
// Call SetConnMaxLifetime with 30 s or so, too, as open.OpenDatabase does. A server of MySQL or MariaDB that a switchover makes read-only keeps its
// connections. Without the call the relay would stay there, and send nothing.
//
// A producer needs the right INSERT on the table of messages, and on PostgreSQL the right USAGE on its sequence. A relay needs
// SELECT, UPDATE and DELETE on the table of messages, and SELECT and UPDATE on the table of partitions. While a right is
// missing, a relay that starts sends nothing, and tells OnError what it may not do. To look at messages needs SELECT on both.
//
// Relays share the partitions evenly, whenever relays start and end. Each relay process needs a client of its own: relays of
// one client count as one. [Relay.Stats] and [Table.Stats] are for metrics.
//
// A lock store may be that of several tables, in several databases, also if the tables have the same name. The first relay puts a random
// number into the table of partitions, and the number is in the name of the slots. A copy of a database has the number of the
// original. Relays of both in one lock store would share the partitions, and each would leave out what the other holds. So give the relays of a
// copy another store, or set beat to 0 in the row with the part 0 of the copy. The next relay of the copy puts another number there.
//
// # What is not promised
//
// The table has one lock store: all relays of the table use it. If that store loses its tokens, takeovers
// fail with an error that matches [fence.ErrStale] until its tokens are large enough again. A relay asks for larger tokens
// each time after RelayOptions.Rescan. A MySQL cluster with several writers
// does not give numbers in the order of commits, so keys keep no order there. On MySQL and MariaDB the same holds for a message whose INSERT
// took longer than a second to write its rows. Also after a switchover a message may overtake another of its key there, until the
// handle's connections to the old primary have ended. A crash of the relay counts no attempt.
//
// A database that loses commits, as by a failover to a replica that is behind, loses the messages of these commits. The relay may have sent
// some of them. A later message may get the number of a lost message. The relay sends that message as well, also where a proxy hides the failover.
//
// On MySQL, unlike MariaDB, a statement cannot bound its own wait for a lock. A message that a transaction with a completion has locked stalls
// its partition there for innodb_lock_wait_timeout, 50 s as shipped, again and again. The cleaning of old messages waits as long for such a message. So give the relay a database handle of its own,
// with innodb_lock_wait_timeout=1 in the DSN of go-sql-driver.
package outbox
