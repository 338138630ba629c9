package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// settling bounds one call of a broker that settles a delivery.
const settling = 5 * time.Second

// run is one time of consuming. One goroutine owns the plan. Others receive, run messages and settle them.
type run struct {
	*Consumer
	plan    *plan
	room    chan int      // how many deliveries the receiver may take
	batches chan received // closed by the receiver
	ended   chan ended
	settled chan settled
	workers sync.WaitGroup
	begun   int           // workers that have not reported
	hold    time.Duration // of the last feed
	over    chan struct{} // closed when nothing is settled any more
}

// received are the deliveries that a feed gave.
type received struct {
	deliveries []Delivery
	feed       int // its number; a later feed has a higher number
	hold       time.Duration
}

// ended is a message whose run has ended.
type ended struct {
	item *item
	outcome
}

// settled is a message whose deliveries were settled, as many as there were.
type settled struct {
	item  *item
	n     int
	again error // the broker did not take the dead letter
}

func newRun(c *Consumer) *run {
	return &run{Consumer: c, plan: newPlan(c.opts.Workers, c.opts.Window), room: make(chan int), batches: make(chan received),
		ended: make(chan ended), settled: make(chan settled), over: make(chan struct{})}
}

// consume works until ctx ends. Then nothing of this run is under way.
func (r *run) consume(ctx context.Context) {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var receiver sync.WaitGroup
	receiver.Go(func() { r.receive(ctx) })
	asked := false
	for ctx.Err() == nil {
		start, wait := r.plan.next(time.Now())
		for _, it := range start {
			r.start(work, it)
		}
		r.plan.rest()
		room, free := r.room, r.plan.free()
		if asked || free == 0 {
			room = nil
		}
		timer := time.NewTimer(time.Hour)
		if !wait.IsZero() {
			timer.Reset(time.Until(wait))
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		case room <- free:
			asked = true
		case batch := <-r.batches:
			asked = false
			r.add(batch)
		case e := <-r.ended:
			r.judge(e)
		case s := <-r.settled:
			r.finish(s)
		}
		timer.Stop()
	}
	r.shutDown(stop)
	close(r.over)
	receiver.Wait()
}

// shutDown waits for the workers, whose ctx ends after Grace. Then it gives all other messages back.
func (r *run) shutDown(stop func()) {
	grace := time.NewTimer(r.opts.Grace)
	defer grace.Stop()
	batches := r.batches
	for r.begun > 0 || batches != nil {
		select {
		case <-grace.C:
			stop()
		case batch, open := <-batches:
			if !open {
				batches = nil
			}
			r.add(batch)
		case e := <-r.ended:
			if f, reason := e.item.fate(e.outcome, r.opts.MaxAttempts); f == acked || f == dead {
				r.settle(e.item, f, reason)
			} else {
				r.begun--
			}
		case s := <-r.settled:
			r.begun--
			if s.again == nil {
				r.plan.done(s.item, s.n)
			}
		}
	}
	r.workers.Wait()
	r.giveBack()
}

// giveBack gives all messages back in their order, so that they come again in it. The broker gives those to others by itself for which there is
// no time.
func (r *run) giveBack() {
	bound, cancel := context.WithTimeout(context.Background(), settling)
	defer cancel()
	for _, it := range r.plan.all() {
		for _, d := range it.deliveries {
			if bound.Err() != nil {
				return
			}
			r.told(d.Nack(bound))
		}
	}
}

func (r *run) add(batch received) {
	r.hold = batch.hold
	for _, d := range batch.deliveries {
		r.plan.add(d, batch.feed)
	}
}

func (r *run) told(err error) {
	if err != nil {
		r.report(err)
	}
}

// start runs a message.
func (r *run) start(ctx context.Context, it *item) {
	r.begun++
	m := task{Message: it.Message, count: it.count}
	if it.parked {
		m.parked = it.deliveries[len(it.deliveries)-1]
	}
	r.workers.Go(func() {
		r.ended <- ended{it, r.once(ctx, m)}
	})
}

// judge decides what becomes of a message whose run has ended.
func (r *run) judge(e ended) {
	f, reason := e.item.fate(e.outcome, r.opts.MaxAttempts)
	if e.err != nil {
		r.report(fmt.Errorf("message %q: %w", e.item.ID, e.err))
	}
	if f == acked || f == dead {
		r.settle(e.item, f, reason)
		return
	}
	r.begun--
	r.retry(e.item)
}

func (r *run) retry(it *item) {
	r.plan.retry(it, time.Now().Add(backoff(it.tries, r.opts.Backoff, r.opts.MaxBackoff)))
}

// mostTaken, and twice Hold and the wait before the next attempt, is how long a key waits for a message that comes again. The broker may have dropped the message, and then
// the key would wait for ever.
const mostTaken = 5 * time.Minute

// settle tells the broker of all deliveries of a message, the last one first. The feed of an earlier one may have ended,
// and then Dead does nothing. Where this process reads alone, the message comes again here, so its key waits for that. A delivery that is not acknowledged comes again, and the inbox absorbs it. A message that does not become a dead letter is kept, because it would run again.
func (r *run) settle(it *item, f fate, reason string) {
	deliveries := slices.Clone(it.deliveries)
	slices.Reverse(deliveries)
	comesHere := r.opts.Single != nil && (it.taken.IsZero() || time.Since(it.taken) < mostTaken+2*r.hold)
	r.workers.Go(func() {
		bound, cancel := context.WithTimeout(context.Background(), settling)
		defer cancel()
		s := settled{item: it, n: len(deliveries)}
		end := Delivery.Ack
		if f == dead {
			err := deliveries[0].Dead(bound, reason)
			deliveries = deliveries[1:]
			switch {
			case err == nil:
				r.report(fmt.Errorf("message %q is a dead letter: %s", it.ID, reason))
			case errors.Is(err, ErrTaken) && !comesHere:
				end = Delivery.Nack // an earlier delivery may be of the same entry
				r.report(fmt.Errorf("no dead letter of message %q: %w", it.ID, err))
			default:
				s.again, deliveries = err, nil
			}
		}
		for _, d := range deliveries {
			r.told(end(d.Delivery, bound))
		}
		r.settled <- s
	})
}

// finish takes a message whose deliveries were settled.
func (r *run) finish(s settled) {
	it := s.item
	r.begun--
	if s.again == nil {
		r.plan.done(it, s.n)
		return
	}
	it.tries++
	if errors.Is(s.again, ErrTaken) && it.taken.IsZero() && len(it.deliveries) == s.n { // else the message has come again
		it.taken = time.Now()
	}
	r.report(fmt.Errorf("dead letter of message %q: %w", it.ID, s.again))
	r.retry(it)
}

// receive opens feeds, one after another, and passes the deliveries on. The last feed stays open until nothing of it is in use.
func (r *run) receive(ctx context.Context) {
	end := func() {}
	for tries, number := 1, 1; ctx.Err() == nil; tries, number = tries+1, number+1 {
		end()
		end = func() {}
		feed, err := r.source.Open(ctx, r.opts.Single != nil)
		if err == nil {
			end = r.keep(feed)
			began := time.Now()
			if err = r.pump(ctx, feed, number); time.Since(began) > r.opts.MaxBackoff {
				tries = 1
			}
		}
		if err != nil {
			r.pause(ctx, err, tries)
		}
	}
	close(r.batches)
	<-r.over
	end()
}

// pump passes deliveries on until ctx ends or the feed fails.
func (r *run) pump(ctx context.Context, feed Feed, number int) error {
	for {
		var most int
		select {
		case <-ctx.Done():
			return nil
		case most = <-r.room:
		}
		got, err := r.some(ctx, feed, most)
		r.batches <- received{got, number, feed.Hold()} // the owner of the plan reads until this is closed
		if err != nil {
			return err
		}
	}
}

// some returns deliveries, or none if the feed has failed or ctx has ended.
func (r *run) some(ctx context.Context, feed Feed, most int) ([]Delivery, error) {
	for {
		got, err := feed.Receive(ctx, most)
		if err != nil && ctx.Err() != nil {
			err = nil
		}
		if err != nil || len(got) > 0 || ctx.Err() != nil {
			return got, err
		}
	}
}

// keep extends the deliveries of a feed until the caller calls end, which closes the feed.
func (r *run) keep(feed Feed) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var keeper sync.WaitGroup
	if hold := feed.Hold(); hold > 0 {
		keeper.Go(func() {
			tick := time.NewTicker(max(hold/3, time.Millisecond))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					bound, stop := context.WithTimeout(ctx, settling)
					if err := feed.Extend(bound); err != nil && ctx.Err() == nil {
						r.report(err)
					}
					stop()
				}
			}
		})
	}
	return func() {
		cancel()
		keeper.Wait()
		bound, stop := context.WithTimeout(context.Background(), settling)
		defer stop()
		r.told(feed.Close(bound))
	}
}
