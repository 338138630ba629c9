package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/inbox"
)

// slack is how long a server may take to find that AckWait is over.
const slack = 500 * time.Millisecond

// turn bounds one wait at the server, and so does a quarter of AckWait. The client cannot end such a wait earlier without the loss of a message that is on its way.
// So long the server also has for the handing out of messages that are there. A pull without a wait gets no answer while the server hands out no more, as at
// MaxAckPending, or when another process takes the messages.
const turn = 200 * time.Millisecond

// scattered bounds a pull for messages that lie apart in the stream. The server reads up to 8 MB from its disk for each of them.
const scattered = 16

// givesUp is how long after the end of a wait at the server the client library gives a pull up.
const givesUp = time.Second

// patience bounds one wait at a server whose answers come late, and so does a third of AckWait. Waits of 10 s and more have heartbeats, which would come late
// too. A message that comes late in a longer wait would have little of its AckWait left.
const patience = 9 * time.Second

// feed is the durable consumer as one process pulls from it.
type feed struct {
	*Source
	consumer jetstream.Consumer
	hold     time.Duration
	single   bool
	seen     uint64 // number of the last delivery by the durable consumer
	most     int    // messages in one pull, so that all come soon
	left     int    // messages at the server behind the last one

	// The messages that the last process had, and has not acknowledged:
	missing int         // how many messages; 0: all are handed out
	last    uint64      // none of them is behind this one in the stream
	ready   time.Time   // before, the server gives none of them again
	found   []*delivery // that were given again, and newer ones

	edited atomic.Bool  // AckWait is shorter now
	longer atomic.Int64 // AckWait, if longer now

	mu   sync.Mutex
	mine map[*delivery]bool // handed out and not settled
	room int                // MaxAckPending, or no limit if zero or less
}

// errTaken names a reason for which a message never arrives.
var errTaken = errors.New("the client library keeps a message without a payload and with the header Status for itself")

// errGap says that a delivery did not arrive. Later messages would overtake that one.
var errGap = fmt.Errorf("a delivery was lost on its way, or %w", errTaken)

// errEdited says that this feed extends too seldom.
var errEdited = errors.New("AckWait of the durable consumer was made shorter")

// errSlow says that messages may have come after the client library stopped waiting. The server counts them as delivered.
var errSlow = errors.New("the answer of the server did not come in time")

// Hold implements [inbox.Feed].
func (f *feed) Hold() time.Duration { return f.hold }

// Receive implements [inbox.Feed].
func (f *feed) Receive(ctx context.Context, most int) ([]inbox.Delivery, error) {
	if f.edited.Load() {
		return nil, f.failed("pull", errEdited)
	}
	if f.missing > 0 {
		err := f.recover(ctx)
		if errors.Is(err, errTaken) {
			f.givenUp.Add(1)
			f.waitedFor.Store(int64(f.missing))
		}
		if err != nil {
			return nil, f.failed("wait for the messages of the last process", err)
		}
	}
	if len(f.found) == 0 {
		var err error
		if f.found, err = f.pull(ctx, most); err != nil {
			return nil, f.failed("pull", err)
		}
	}
	n := min(most, len(f.found))
	var got []inbox.Delivery
	for _, d := range f.found[:n] {
		got = append(got, d)
	}
	f.found = f.found[n:]
	return got, nil
}

// recover waits until the server has given all messages again that the last process had, and puts them in the order of
// the stream. There is a bound, because one of them may never arrive.
func (f *feed) recover(ctx context.Context) error {
	if err := f.rest(ctx); err != nil {
		return err
	}
	if f.again.Load() != nil { // the lost message is most likely one of these
		now := time.Now()
		f.comesAgain(window{now, now.Add(max(2*f.longest(), asking))})
	}
	came, old, size := make(map[uint64]bool), 0, scattered
	for since := time.Now(); old < f.missing; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.tooLong(since) {
			return fmt.Errorf("%d of %d have not come for long, as when %w", f.missing-old, f.missing, errTaken)
		}
		asked := time.Now()
		got, err := f.fetch(min(f.missing-old, size), f.turn())
		if err != nil {
			return err
		}
		if len(got) == size && time.Since(asked) < f.turn()/4 {
			size *= 2
		}
		f.found = append(f.found, got...)
		if n := f.come(came, got); n > 0 {
			old, since = old+n, time.Now()
			continue
		}
		pending, err := f.pending(ctx)
		if err != nil {
			return err
		}
		if pending <= len(came) { // no further message is missing, because the last process has acknowledged some, or the server counts some as new
			break
		}
	}
	slices.SortFunc(f.found, func(a, b *delivery) int {
		return cmp.Or(cmp.Compare(a.sequence, b.sequence), cmp.Compare(b.count, a.count))
	})
	sequence := uint64(0)
	f.found = slices.DeleteFunc(f.found, func(d *delivery) bool {
		repeat := d.sequence == sequence
		if sequence = d.sequence; repeat {
			d.settled()
		}
		return repeat
	})
	f.missing = 0
	f.givenUp.Store(0)
	f.again.Store(nil)
	return nil
}

// come notes which messages came, and returns how many further ones of the last process came. A server before 2.10.14 may give the last message of
// the stream twice, and counts the second delivery as the first. Then the server gives an earlier message after AckWait only. A later server counts a message as
// new that was on its way to a process that had gone.
func (f *feed) come(came map[uint64]bool, got []*delivery) (n int) {
	for _, d := range got {
		old := d.sequence <= f.last && d.count > 1
		if old && !came[d.sequence] {
			n++
		}
		came[d.sequence] = came[d.sequence] || old
	}
	return n
}

// rest waits until the server gives the messages again, and twice as long after each recovery in a row that was given up. Each costs the messages
// a delivery, and MaxDeliveries bounds those. The longer wait ends when a message is acknowledged or removed.
func (f *feed) rest(ctx context.Context) error {
	if err := sleep(ctx, time.Until(f.ready)); err != nil {
		return err
	}
	wait := f.hold + slack
	for end := f.ready.Add(wait<<min(f.givenUp.Load(), 7) - wait); time.Now().Before(end); {
		if pending, err := f.pending(ctx); err != nil || pending < f.missing {
			return err
		}
		if err := sleep(ctx, min(time.Second, time.Until(end))); err != nil {
			return err
		}
	}
	return nil
}

// pending asks how many messages are handed out and not acknowledged. Info of a consumer that two goroutines have would be a race, and Extend
// asks beside Receive. So each question has a consumer of its own.
func (f *feed) pending(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	consumer, err := f.js.Consumer(ctx, f.stream, f.durable)
	if err != nil {
		return 0, err
	}
	info := consumer.CachedInfo()
	f.mu.Lock()
	f.room = info.Config.MaxAckPending
	f.mu.Unlock()
	f.longer.Store(int64(info.Config.AckWait))
	if info.Config.AckWait < f.hold {
		f.edited.Store(true)
		return 0, errEdited
	}
	return info.NumAckPending, nil
}

// longest is AckWait as it was last seen, or as it was when the feed was opened.
func (f *feed) longest() time.Duration { return max(f.hold, time.Duration(f.longer.Load())) }

// tooLong reports whether nothing has come for twice AckWait, and at least for the time of an answer.
func (f *feed) tooLong(since time.Time) bool { return time.Since(since) > max(2*f.longest(), asking) }

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// turn is the wait of one pull.
func (f *feed) turn() time.Duration { return max(time.Millisecond, min(turn, f.hold/4)) }

// pull returns the messages that are there, or waits for one message. A pull asks for no more than the server hands out at once, as far as this process knows. Else
// the first message would wait for the last one. Other processes may take the messages, and the server counts no redeliveries. Then the pull ends by its wait, which is
// shorter where other processes may read. Also a nats-server before 2.9.16 may forget a pull to which a message comes at its end.
func (f *feed) pull(ctx context.Context, most int) ([]*delivery, error) {
	if ctx.Err() != nil {
		return nil, nil
	}
	f.mu.Lock()
	n := min(most, f.left)
	if f.room > 0 {
		n = min(n, f.room-len(f.mine))
	}
	f.mu.Unlock()
	for end := time.Now().Add(f.opts.Block); ; n = 1 {
		wait := f.turn()
		switch {
		case n <= 1:
			n, wait = 1, min(wait, max(time.Millisecond, time.Until(end)))
		case !f.single:
			wait = max(time.Millisecond, wait/4)
		}
		got, err := f.fetch(n, wait)
		if err != nil || len(got) > 0 || ctx.Err() != nil || f.patient() || !time.Now().Before(end) {
			return got, err
		}
	}
}

// fetch asks for messages, and reads the answer to its end, because the server counts its messages as delivered. The server waits so long
// for all. After a pull that the library gave up, fetch asks for one message at a time and has patience, until an answer comes soon. The same holds when the
// message comes again that was lost.
func (f *feed) fetch(most int, wait time.Duration) (got []*delivery, err error) {
	again, patient := f.again.Load(), f.patient()
	most = min(most, f.most)
	if patient {
		most, wait = 1, min(patience, max(turn, f.hold/3))
	}
	asked, last := now(), time.Now()
	f.left = 0
	batch, err := f.consumer.Fetch(most, jetstream.FetchMaxWait(wait))
	if err != nil {
		return nil, err
	}
	for msg := range batch.Messages() {
		if time.Since(last) < givesUp/2 {
			f.slow.Store(false)
		}
		last = time.Now()
		is, failed := msg.Metadata()
		if failed != nil {
			err = failed
			continue
		}
		if f.single && is.Sequence.Consumer != f.seen+1 && err == nil {
			err = fmt.Errorf("%w: number %d follows number %d", errGap, is.Sequence.Consumer, f.seen)
		}
		if f.seen, f.left = is.Sequence.Consumer, int(is.NumPending); is.NumDelivered > 1 { // the server does not say how many of those are behind
			f.left = scattered
		}
		if err == nil {
			got = append(got, f.hand(msg, is, asked))
		}
	}
	if err == nil && len(got) == 0 {
		if err = batch.Error(); err != nil && strings.TrimSpace(err.Error()) == "nats:" { // of a status that the library has no words for
			err = errTaken
		}
	}
	switch took := time.Since(asked.clock); {
	case took > wait+min(f.hold/8, time.Second): // AckWait of all counts from the request
		f.most = max(1, len(got)/2)
	case len(got) == most:
		f.most = max(f.most, 2*most)
	}
	switch took := time.Since(last); {
	case took >= wait+givesUp*9/10: // the library begins to wait a little earlier than this process knows
		f.slow.Store(true)
		// The server sent the message that was lost between the request and now, and sends that message again after AckWait.
		f.comesAgain(window{asked.clock.Add(f.longest() - slack), time.Now().Add(f.longest() + slack)})
		if err == nil && len(got) == 0 {
			err = errSlow
		}
	case err == nil && len(got) == 0 && took < wait+givesUp/2: // the server says soon that there is no message
		f.slow.Store(false)
	}
	if patient && again != nil && asked.clock.After(again.to) { // the server sends such a message before others
		f.again.CompareAndSwap(again, nil)
	}
	return got, err
}

// window is the time in which the server can send a lost message again. The server does so when a pull asks, so the window ends with a pull that has
// patience and begins behind it.
type window struct{ from, to time.Time }

// comesAgain adds a window to an earlier window, which is open or to come.
func (f *feed) comesAgain(w window) {
	for {
		old, both := f.again.Load(), w
		if old != nil && old.from.Before(w.from) {
			both.from = old.from
		}
		if old != nil && old.to.After(w.to) {
			both.to = old.to
		}
		if f.again.CompareAndSwap(old, &both) {
			return
		}
	}
}

// patient reports whether the last answer was late, or a message that was too late comes again now. That message may be large, and then quick answers in
// between say nothing of it.
func (f *feed) patient() bool {
	w := f.again.Load()
	return f.slow.Load() || w != nil && time.Now().After(w.from)
}

// hand makes a delivery of a message, which the server sent at the earliest when it was asked. AckWait counts from then, however late the
// message came. A process that was frozen meanwhile may have lost the message.
func (f *feed) hand(msg jetstream.Msg, is *jetstream.MsgMetadata, asked moment) *delivery {
	d := &delivery{feed: f, msg: msg, m: message(msg, is.Timestamp), count: int(is.NumDelivered), sequence: is.Sequence.Stream, stored: is.Timestamp,
		until: asked.add(f.hold)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mine[d] = true
	return d
}

// Extend implements [inbox.Feed]. The answer to a request shows that the server has most likely read the extensions before that request. A delivery that was
// extended too late is lost, because the server may have given the message to another process.
func (f *feed) Extend(ctx context.Context) error {
	until := now().add(f.hold)
	var all []*delivery
	f.mu.Lock()
	for d := range f.mine {
		if d.holds() {
			all = append(all, d)
		}
	}
	f.mu.Unlock()
	for _, d := range all {
		if err := d.msg.InProgress(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return f.failed("extend", err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	_, err := f.pending(ctx)
	if err != nil && !errors.Is(err, errEdited) {
		return f.failed("extend", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range all {
		if d.holds() {
			d.until = until
		}
	}
	return f.failed("extend", err)
}

// Close implements [inbox.Feed]. Each pull ends by itself.
func (f *feed) Close(context.Context) error { return nil }

// delivery is a message in the hands of the consumer.
type delivery struct {
	feed     *feed
	msg      jetstream.Msg
	m        inbox.Message
	count    int
	sequence uint64 // in the stream
	stored   time.Time
	until    moment // the server leaves the message to this process until then, as far as this process knows; guarded by feed.mu
}

// holds reports whether the server has left the message to this process. The caller has the lock of the feed.
func (d *delivery) holds() bool {
	is := now()
	return is.clock.Before(d.until.clock) && is.day.Before(d.until.day)
}

// moment is a time on two clocks. Go's monotonic clock stands still while the machine sleeps, and the time of day may be set back. A moment has
// passed when either clock says so.
type moment struct{ clock, day time.Time }

// timeOfDay is a variable so that a test can put the machine to sleep.
var timeOfDay = func() time.Time { return time.Now().Round(0) }

func now() moment { return moment{time.Now(), timeOfDay()} }

func (m moment) add(d time.Duration) moment { return moment{m.clock.Add(d), m.day.Add(d)} }

// lost reports whether AckWait may have run out.
func (d *delivery) lost() bool {
	d.feed.mu.Lock()
	defer d.feed.mu.Unlock()
	return d.feed.edited.Load() || !d.holds()
}

// Message implements [inbox.Delivery].
func (d *delivery) Message() inbox.Message { return d.m }

// Unload implements [inbox.Delivery]. The server gives a message again only as a further delivery, so the content stays here.
func (d *delivery) Unload() {}

// Load implements [inbox.Delivery].
func (d *delivery) Load(context.Context) (inbox.Message, error) { return d.m, nil }

// Count implements [inbox.Delivery].
func (d *delivery) Count() int { return d.count }

// Ack implements [inbox.Delivery].
func (d *delivery) Ack(ctx context.Context) error {
	defer d.settled()
	return d.told("acknowledge", d.msg.DoubleAck(ctx))
}

// Nack implements [inbox.Delivery]. A message that was lost comes again without that.
func (d *delivery) Nack(context.Context) error {
	defer d.settled()
	if d.lost() {
		return nil
	}
	return d.told("give back", d.msg.Nak())
}

// Dead implements [inbox.Delivery]. For a message that was lost the error matches inbox.ErrTaken, because the server gives the message to a
// process again. After the stream has the letter, no error follows. The message comes again if its end is lost, and an error would run the message again here.
func (d *delivery) Dead(ctx context.Context, reason string) error {
	if d.lost() {
		d.settled()
		return d.feed.failed("publish the dead letter", inbox.ErrTaken)
	}
	if err := d.bury(ctx, reason); err != nil {
		return d.told("publish the dead letter", err)
	}
	defer d.settled()
	d.msg.Term() //nolint:errcheck // see above
	return nil
}

func (d *delivery) settled() {
	d.feed.mu.Lock()
	defer d.feed.mu.Unlock()
	delete(d.feed.mine, d)
}

func (d *delivery) told(what string, err error) error {
	if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return nil
	}
	return d.feed.failed(what, err)
}
