// Package rabbit takes messages from a queue of RabbitMQ, as a source of package inbox.
//
//	source, err := rabbit.New(rabbit.Dial(url, amqp091.Config{}), "billing", nil)
//	...
//	consumer, err := box.Consumer(db, store, source, handle, nil)
//
// The messages are in the format of package outbox/rabbit. The property message_id is the ID, timestamp is the time, and the
// header Pawl-Key is the key. All other headers are those of the user, as text. A message without an ID or a timestamp
// is a dead letter.
//
// # What is promised
//
//   - A message is acknowledged after it took effect. AMQP has no answer to that. So the broker may deliver a message again
//     whose acknowledgement was lost, and the inbox absorbs the repeat.
//   - A lost connection is dialled again. So is one whose channel the broker has closed, as after its consumer_timeout. A queue
//     that is deleted is an error until somebody declares the queue again.
//   - At most Options.Prefetch messages are in this process. A message that is parked behind a failing one stays there, and the broker gets
//     all messages back at the end. So the queue keeps its order, and a quorum queue counts no delivery for a wait.
//   - A dead letter is published to the queue Options.Dead, and the broker has confirmed that, before the message is acknowledged.
//     The letter has the headers of the message, and Pawl-Dead-Reason and Pawl-Dead-Queue. CC and BCC, by which the broker would route
//     the letter, are Pawl-Dead-CC and Pawl-Dead-BCC. A lost connection in between may publish it twice. When the
//     connection was lost before, no letter is published: the broker delivers the message again, and its attempts are counted anew. OnError tells
//     that. A loss that this process has not noticed yet still publishes the letter, and the message may run besides.
//
// # Order over several processes
//
// Declare the queue with the argument x-single-active-consumer. The broker then delivers to one process at a time. The next process
// begins with what the last one had not acknowledged. Without that argument, set inbox.ConsumerOptions.Single, which needs no
// support of the broker. To share the work of many keys, use several queues with one Source each. Bind the
// queues to an exchange of type x-consistent-hash, with the header Pawl-Key as its hash-header. The key of a message then
// decides the queue. Or let rabbit.Options.Route of the publisher choose the queue. A change of the number of queues moves keys, so
// drain the queues before.
//
// # How often a message was delivered
//
// A quorum queue counts deliveries, and so does inbox.Delivery. One counts for each connection that ended with the message not settled, whether the
// message ran or not. A message that waits in the process counts no more. A classic queue tells a repeat from a first delivery only, so the
// count is 1 or 2.
// inbox.ConsumerOptions.MaxDeliveries thus protects from messages that end each process on quorum queues only. A quorum queue of
// RabbitMQ 4 drops a message after 20 deliveries by default. Set its x-delivery-limit higher than MaxDeliveries.
//
// # A quorum queue without a leader
//
// The only member of a quorum queue may stay a follower for ever after its server was killed. That happens on RabbitMQ 3.10. The queue
// then takes no message and no consumer, and OnError tells time-outs. An operator ends that by an election, here for the queue
// "billing" of the virtual host "/":
//
//	rabbitmqctl eval 'ra:trigger_election({list_to_atom("%2F_billing"), node()}).'
//
// A queue with three members on three servers elects its leader by itself.
//
// # What is not promised
//
// A queue that is not durable forgets its messages when the broker restarts. A queue with a limit may drop messages that nobody has
// read. A key that fails with more than Prefetch messages at the head of the queue stops the queue. A dead letter that the
// broker does not take is tried again, and its key waits. OnError of the consumer tells the reason.
package rabbit
