package natsjs_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/natsjs"
)

func Example() {
	server := testservers.SharedNATS(testservers.ForExample())
	nc, err := nats.Connect("nats://"+server.Addr, nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "EXAMPLE", Subjects: []string{"example.>"}}); err != nil {
		log.Fatal(err)
	}
	publisher := natsjs.New(nc, js) // for outbox.Table.Relay
	fmt.Println(publisher.Publish(context.Background(), outbox.Message{ID: "1", Topic: "example.orders", Payload: []byte("placed")}))
	fmt.Println(publisher.Publish(context.Background(), outbox.Message{ID: "2", Topic: "orders", Payload: []byte("placed")}))
	// Output:
	// <nil>
	// nats: publish to subject "orders": the broker refused the message: no stream takes this subject
}
