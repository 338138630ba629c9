package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/rabbit"
)

// A relay gets such a publisher. Nil says that the broker keeps the message.
func Example() {
	ctx := context.Background()
	url := testservers.RabbitMQURL(testservers.SharedRabbitMQ(testservers.ForExample()).Addr)
	publisher, err := rabbit.New(rabbit.Dial(url, amqp.Config{}), &rabbit.Options{Exchange: "amq.topic"})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close(ctx)
	err = publisher.Publish(ctx, outbox.Message{ID: "1", Topic: "orders.placed", Payload: []byte("order 7")})
	fmt.Println("no queue is bound:", errors.Is(err, outbox.ErrRefused))
	// Output:
	// no queue is bound: true
}
