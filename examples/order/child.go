package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// The roles of the processes.
const (
	producer = "producer" // takes orders, and hears confirmations
	relay    = "relay"    // sends messages
	consumer = "consumer" // lowers the stock, and confirms
	clerk    = "clerk"    // takes orders in one transaction with their payments, and hears the program
)

// childFailed is the exit code of a process that has failed by itself. A process that was killed has another.
const childFailed = 3

// settings are what a process has to know. The settings come through its standard input.
type settings struct {
	Role                  string
	Orders, Stock, Broker string // URLs
	Payments              string // URL; empty: nothing is paid
	Locks, StockLocks     string // URLs of the stores of locks: for relays, and for consumers
	Stream                string // of the broker
	Shop                  string // host and port where the producer hears confirmations
	N, First              int    // customers, and the number of the first
	Naive                 bool
	Form                  string        // of the naive producer; empty: each customer gets another
	Declined              bool          // all cards are declined, and not every fifth
	Die                   string        // the point at which a process dies, or the reply that is lost
	Odds                  int           // a process dies at each of Odds points, by chance; 0: never
	ByHand                bool          // a clerk does two-phase commit without dtx
	WithStock             bool          // the stock takes part in the transaction of a clerk
	Late                  bool          // the customers of a clerk come at a word
	Patience              time.Duration // of the customers of a clerk, when they come first; 0: without end

	words chan string // from the program
	out   io.Writer
}

// The points at which a process may die, and a reply that may be lost.
const (
	beforeVote   = "after the statements of an order and of its payment"
	afterPayment = "after a naive producer has taken the payment"
	afterCommit  = "after the commit of an order"
	afterSend    = "after a naive producer has sent"
	afterConfirm = "after the broker has confirmed"
	beforeAck    = "after the commit of a delivery"
	reply        = "the confirmation"
)

// die ends this process as kill -9 does, if it is to end here.
func (s *settings) die(point string) {
	if s.lot(point) {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {}
	}
}

func (s *settings) lot(point string) bool {
	return s.Die == point || s.Odds > 0 && rand.IntN(s.Odds) == 0
}

// beChild is a process. The process ends when its standard input does.
func beChild(ctx context.Context, in io.Reader, out io.Writer) error {
	var s settings
	d := json.NewDecoder(in)
	if err := d.Decode(&s); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.out, s.words = out, make(chan string, 16)
	go func() {
		for lines := bufio.NewScanner(io.MultiReader(d.Buffered(), in)); lines.Scan(); {
			if lines.Text() != "" { // the end of the settings
				s.words <- lines.Text()
			}
		}
		stop()
	}()
	role := map[string]func(context.Context, *settings) error{producer: produce, relay: relayAll, consumer: consume, clerk: takeOrders}[s.Role]
	if err := role(ctx, &s); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", s.Role, err)
	}
	return nil
}

// confirmer tells the shop that an order is delivered. A confirmation that is lost is not repeated here.
type confirmer struct {
	*settings
	client http.Client
	lost   atomic.Bool
}

func (c *confirmer) confirm(ctx context.Context, id string, o order) {
	if c.lot(reply) && !c.lost.Swap(true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	url := "http://" + c.Shop + "/delivered?message=" + id + "&order=" + o.ID
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		panic(err) // the IDs are plain
	}
	if answer, err := c.client.Do(request); err == nil {
		answer.Body.Close()
	}
}

// listen takes a port. The last process on the port may have been killed a moment ago.
func listen(ctx context.Context, addr string) (listener net.Listener, err error) {
	for tries := 0; tries < 50 && ctx.Err() == nil; tries++ {
		if listener, err = net.Listen("tcp", addr); err == nil {
			return listener, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, errors.Join(err, ctx.Err())
}

// serve serves until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	stopped := context.AfterFunc(ctx, func() { server.Close() })
	defer stopped()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
