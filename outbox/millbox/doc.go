// Package millbox joins an outbox and Watermill. A relay publishes by any publisher of Watermill, such as that of Kafka. A program
// of Watermill enqueues by an interface that it knows.
//
//	publisher, err := millbox.New(kafkaPublisher, &millbox.Options{Classify: classify})
//	...
//	relay, err := table.Relay(client, db, publisher, nil)
//
//	enqueuer, err := millbox.NewEnqueuer(table, tx, nil) // one for each transaction
//	...
//	err = enqueuer.Publish("orders", message.NewMessage(watermill.NewUUID(), payload))
//
// The UUID of a message of Watermill is Message.ID. The metadata has the headers, and Pawl-Key with Message.Key, and Pawl-Time
// with Message.Time as RFC 3339.
//
// # What is promised
//
// A message is confirmed when Publish of Watermill has returned nil. So a confirm says what that publisher's nil says, and no
// more. Choose a publisher that waits for the broker, and set it so. With watermill-nats leave AckAsync false. With watermill-amqp set
// ConfirmDelivery. A publisher that returns before the broker keeps the message loses messages when either of both dies.
//
// # Errors
//
// Watermill has no kinds of errors. So every error says that the outcome is unknown, unless Options.Classify says more. The
// relay counts such an attempt only if the broker has confirmed another message meanwhile. Set Classify, so that a broker that
// takes some messages and no others makes none of those dead.
//
// # What is not promised
//
// Publishers of Watermill need not heed a ctx. Publish of this package returns when its ctx ends, and the call goes on behind it, until that
// publisher gives up. Such calls count for Options.Window.
package millbox
