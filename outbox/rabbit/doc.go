// Package rabbit publishes the messages of an outbox to RabbitMQ, with publisher confirms.
//
//	publisher, err := rabbit.New(rabbit.Dial(url, amqp091.Config{}), &rabbit.Options{Exchange: "orders"})
//	...
//	defer publisher.Close(ctx)
//	relay, err := table.Relay(client, db, publisher, nil)
//
// Message.Topic is the routing key. Without an exchange that is the name of a queue. The payload is the body, and the
// delivery mode is persistent. The message ID is the property message_id, and the time is the property timestamp.
// The headers of the message are headers of AMQP, beside the header Pawl-Key with Message.Key, if there is one. The header
// Content-Type, in this spelling, is the property content_type instead. The publisher declares nothing.
//
// # What is promised
//
//   - Publish returns nil once the broker has confirmed the message, and has not returned it as unroutable. A durable
//     classic queue confirms what its disk has. A quorum queue confirms what a majority has. A queue that is not durable
//     forgets its messages when the broker restarts.
//   - Any number of calls are in flight on one channel. The broker confirms them in any order, so a slow queue holds up
//     no call for another queue.
//   - A lost connection is dialled again, with pauses from 100 ms to 5 s. Messages in flight
//     then have an unknown outcome, and the relay sends them again. Consumers recognise a repeat by its ID.
//   - Publish returns when its ctx ends, also while the broker is frozen.
//
// # Errors
//
// A message is refused, as [outbox.ErrRefused] says, if no queue takes it. So is a message for an exchange that is missing
// or closed to this user, and a message that is too large for the broker. The broker closes a channel for most of
// these and does not say for which message. Every message of that channel without a confirm is then sent once more, each alone
// on a channel of its own. So the bad message is refused, and no other.
//
// The publisher is blocked, as [outbox.ErrBlocked] says, while the broker has an alarm of memory or disk. A publisher
// without a connection is blocked too. So is each message for a queue that is full and rejects messages. Such messages
// wait, and nothing is lost. No error of this package has a URL.
//
// # What is not promised
//
// A queue deleted after the confirm takes its messages with it. A queue with a limit and another overflow
// behaviour than reject-publish drops messages that were confirmed. The payload must not change until its call
// has returned nil or the publisher is closed.
package rabbit
