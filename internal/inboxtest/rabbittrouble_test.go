package inboxtest_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/rabbit"
	"github.com/pawl-go/pawl/internal/testservers"
)

// do calls fn with a channel of RabbitMQ.
func (w *world) do(t *testing.T, fn func(*amqp.Channel) error) {
	t.Helper()
	if err := w.broker.(*rabbitBroker).with(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

// TestRabbitTrouble: the broker closes the channel of a consumer, deletes queues or takes no dead letters. The consumer tells
// the reason, and goes on when the trouble is over.
func TestRabbitTrouble(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *world){"a slow message": slowMessage, "a deleted queue": deletedQueue, "dead letters": refusedLetters} {
		for _, kind := range []string{"rabbitmq classic", "rabbitmq quorum"} {
			t.Run(name+" in "+kind, func(t *testing.T) {
				t.Parallel()
				if name == "a slow message" { // changes the settings of the server
					test(t, newWorld(t, kind, testservers.RabbitMQ(t)))
				} else {
					test(t, newWorld(t, kind, testservers.SharedRabbitMQ(t)))
				}
			})
		}
	}
}

// slowMessage runs longer than the consumer_timeout of the broker, which closes the channel. The message is delivered again
// while its first run goes on, and takes effect once.
func slowMessage(t *testing.T, w *world) {
	testservers.RabbitMQControl(t, w.broker.(*rabbitBroker).server, "eval",
		"application:set_env(rabbit, consumer_timeout, 1000), application:set_env(rabbit, channel_tick_interval, 500).")
	open := make(chan struct{})
	w.fail = func(m inbox.Message, _ int) error {
		if m.ID == "a-1" {
			<-open
		}
		return nil
	}
	w.run(t)
	w.send(t, message("a", 1), message("a", 2))
	w.told(t, "timeout")
	close(open)
	if f := check(w.took(t, 2), 1, 2); f != (faults{}) {
		t.Errorf("%+v", f)
	}
	w.idle(t)
}

func deletedQueue(t *testing.T, w *world) {
	w.run(t)
	w.send(t, message("a", 1))
	w.took(t, 1)
	w.do(t, func(ch *amqp.Channel) error { _, err := ch.QueueDelete(w.name, false, false, false); return err })
	w.told(t, "cancelled the consumer")
	w.told(t, "no queue '"+w.name+"'")
	w.do(t, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(w.name, true, false, false, false, nil)
		return err
	})
	w.send(t, message("a", 2))
	if f := check(w.took(t, 2), 1, 2); f != (faults{}) {
		t.Errorf("%+v", f)
	}
}

// refusedLetters deletes the queue of dead letters, which is declared again. Then a full queue rejects a letter, until it has
// room.
func refusedLetters(t *testing.T, w *world) {
	dead := w.name + ".dead"
	w.fail = func(m inbox.Message, _ int) error {
		if m.Key == "a" {
			return fmt.Errorf("no such order: %w", inbox.ErrRefused)
		}
		return nil
	}
	w.run(t)
	letters := func(n int) {
		t.Helper()
		until(t, fmt.Sprintf("%d dead letters", n), func() bool { all, err := w.dead(t.Context()); return err == nil && len(all) == n })
	}
	w.send(t, message("a", 1))
	letters(1)
	w.do(t, func(ch *amqp.Channel) error { _, err := ch.QueueDelete(dead, false, false, false); return err })
	w.send(t, message("a", 2))
	letters(1)
	w.do(t, func(ch *amqp.Channel) error {
		if _, err := ch.QueueDelete(dead, false, false, false); err != nil {
			return err
		}
		_, err := ch.QueueDeclare(dead, true, false, false, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
		return err
	})
	w.send(t, message("a", 3), message("a", 4), message("b", 1))
	w.took(t, 1)
	w.told(t, "as a full queue may")
	w.do(t, func(ch *amqp.Channel) error { _, err := ch.QueuePurge(dead, false); return err })
	letters(1)
	w.idle(t)
}

// TestRabbitCount: a quorum queue counts readers that had the message, and a classic queue tells the first from others. A reader whose feed has
// ended makes no dead letter, because the broker gives the message to another reader.
func TestRabbitCount(t *testing.T) {
	for kind, want := range map[string][]int{"rabbitmq classic": {1, 2, 2}, "rabbitmq quorum": {1, 2, 3}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind, testservers.SharedRabbitMQ(t))
			w.send(t, message("a", 1))
			source, err := w.source()
			if err != nil {
				t.Fatal(err)
			}
			for i, n := range want {
				feed, err := source.Open(t.Context(), false)
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					if _, err := source.Open(t.Context(), true); err == nil {
						t.Error("opened beside another consumer, for a single one")
					}
				}
				got, err := feed.Receive(t.Context(), 8)
				if err != nil || len(got) != 1 || got[0].Count() != n {
					t.Fatalf("delivery %d: %v %v, want count %d", i+1, got, err, n)
				}
				if err := errors.Join(got[0].Nack(t.Context()), feed.Close(t.Context())); err != nil {
					t.Fatal(err)
				}
				if err := got[0].Ack(t.Context()); !errors.Is(err, pawl.ErrClosed) {
					t.Error(err)
				}
				if err := got[0].Dead(t.Context(), "a reason"); !errors.Is(err, inbox.ErrTaken) {
					t.Error(err)
				}
			}
			if all, err := w.dead(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("%d dead letters, %v", len(all), err)
			}
		})
	}
}

// TestRabbitOptions: bad settings are refused by name, before anything is dialled.
func TestRabbitOptions(t *testing.T) {
	dial := rabbit.Dial("amqp://guest:secret@127.0.0.1:1/", amqp.Config{})
	long := string(make([]byte, 256))
	for name, fn := range map[string]func() (*rabbit.Source, error){
		"dial":             func() (*rabbit.Source, error) { return rabbit.New(nil, "q", nil) },
		"queue":            func() (*rabbit.Source, error) { return rabbit.New(dial, "", nil) },
		"Options.Prefetch": func() (*rabbit.Source, error) { return rabbit.New(dial, "q", &rabbit.Options{Prefetch: 70_000}) },
		"Options.Dead":     func() (*rabbit.Source, error) { return rabbit.New(dial, "q", &rabbit.Options{Dead: long}) },
	} {
		if _, err := fn(); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRoutedDeadLetter: a message whose sender had it copied to other queues gets a dead letter. No other queue gets a copy of that.
func TestRoutedDeadLetter(t *testing.T) {
	w := newWorld(t, "rabbitmq classic", testservers.SharedRabbitMQ(t))
	w.fail = func(m inbox.Message, _ int) error {
		if m.ID == "a-1" {
			return fmt.Errorf("no such order: %w", inbox.ErrRefused)
		}
		return nil
	}
	other := w.name + "_other"
	w.do(t, func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclare(other, true, false, false, false, nil); err != nil {
			return err
		}
		return ch.PublishWithContext(t.Context(), "", w.name, true, false, amqp.Publishing{MessageId: "a-1", Timestamp: time.Now(),
			Headers: amqp.Table{"CC": []any{other}, "Pawl-Key": "a"}, Body: []byte("x")})
	})
	w.send(t, message("a", 2))
	w.run(t)
	w.took(t, 1)
	w.do(t, func(ch *amqp.Channel) error {
		letter, ok, err := ch.Get(w.name+".dead", true)
		if !ok || letter.Headers["Pawl-Dead-CC"] != "["+other+"]" || letter.Headers["CC"] != nil {
			t.Error(ok, letter.Headers)
		}
		if err != nil {
			return err
		}
		is, err := ch.QueueDeclarePassive(other, true, false, false, false, nil)
		if is.Messages != 1 {
			t.Errorf("the other queue has %d messages: want that of the sender", is.Messages)
		}
		return err
	})
}
