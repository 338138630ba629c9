package redisstream

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/inbox"
)

// answer is how long the server may take for an answer.
const answer = 10 * time.Second

// feed is the stream as one consumer of the group reads it.
type feed struct {
	*Source
	name     string
	recovers bool      // the entries that others have not acknowledged come first
	after    string    // behind this entry the scan for entries of others goes on; empty between two scans
	scanned  time.Time // the end of the last scan, the zero time at first
	claimed  bool      // by the last call, so it is the turn of new entries

	mu   sync.Mutex
	mine map[string]bool // entries that are handed out and not settled

	turn sync.RWMutex // of Extend, or of any number of Nacks, because an Extend that comes after a Nack would take the entry back for Hold
}

// Hold implements [inbox.Feed].
func (f *feed) Hold() time.Duration { return f.opts.Hold }

// Receive implements [inbox.Feed]. Entries that were given back come before new ones at first. Later scans take turns with new entries. A key
// that fails may have given very many back.
func (f *feed) Receive(ctx context.Context, most int) ([]inbox.Delivery, error) {
	for f.recovers {
		got, full, err := f.claim(ctx, 0, most)
		if f.recovers = full; !full {
			f.after = ""
		}
		if err != nil || len(got) > 0 {
			return got, err
		}
	}
	pause := min(f.opts.Hold/4, time.Second)
	first := f.scanned.IsZero()
	if f.after == "" && time.Since(f.scanned) >= pause {
		f.after = "-"
	}
	for f.after != "" && (first || !f.claimed) {
		got, full, err := f.claim(ctx, f.opts.Hold, most)
		if err == nil && !full {
			f.after, f.scanned = "", time.Now()
		}
		if f.claimed = len(got) > 0; err != nil || f.claimed {
			return got, err
		}
	}
	f.claimed = false
	block := min(f.opts.Block, pause)
	if f.after != "" {
		block = 0
	}
	return f.read(ctx, most, block)
}

// read returns new entries, or waits for some.
func (f *feed) read(ctx context.Context, most int, block time.Duration) ([]inbox.Delivery, error) {
	b := f.client.B()
	ctx, cancel := context.WithTimeout(ctx, block+answer) // a server whose machine is gone closes no connection
	defer cancel()
	cmd := b.Xreadgroup().Group(f.group, f.name).Count(int64(most)).Block(max(1, block.Milliseconds())).Streams().Key(f.stream).Id(">").Build()
	if block == 0 {
		cmd = b.Xreadgroup().Group(f.group, f.name).Count(int64(most)).Streams().Key(f.stream).Id(">").Build()
	}
	all, err := f.client.Do(ctx, cmd).AsXRead()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	if err != nil {
		return nil, f.failed("read", err)
	}
	var got []inbox.Delivery
	for _, e := range all[f.stream] {
		got = append(got, f.hand(e, 1))
	}
	return got, nil
}

// claim takes entries that others have held for so long without a sign of life, in the order of the stream. XPENDING with
// XCLAIM says how often an entry was delivered, and XAUTOCLAIM does not. Full says that there may be more.
func (f *feed) claim(ctx context.Context, idle time.Duration, most int) (got []inbox.Delivery, full bool, _ error) {
	list, err := f.client.Do(ctx, f.client.B().Arbitrary("XPENDING").Keys(f.stream).Args(f.group, "IDLE", ms(idle), f.after, "+", strconv.Itoa(most)).Build()).ToArray()
	if err != nil {
		return nil, true, f.failed("list the pending entries", err)
	}
	counts := make(map[string]int)
	ids := []string{f.group, f.name, ms(idle)}
	for _, one := range list {
		row, err := one.ToArray() // the entry, the consumer, the time, the deliveries
		if err != nil || len(row) < 4 {
			return nil, true, f.failed("list the pending entries", err)
		}
		id, err := row[0].ToString()
		if err != nil {
			return nil, true, f.failed("list the pending entries", err)
		}
		f.after = "(" + id
		n, _ := row[3].ToInt64()
		if !f.holds(id) || f.recovers {
			counts[id], ids = int(n)+1, append(ids, id)
		}
	}
	if full = len(list) == most; len(counts) == 0 {
		return nil, full, nil
	}
	entries, err := f.client.Do(ctx, f.client.B().Arbitrary("XCLAIM").Keys(f.stream).Args(ids...).Build()).AsXRange()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, true, f.failed("take over", err)
	}
	for _, e := range entries {
		if e.ID != "" { // of an entry that was deleted
			got = append(got, f.hand(e, counts[e.ID]))
		}
	}
	return got, full, nil
}

func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func (f *feed) hand(e rueidis.XRangeEntry, count int) inbox.Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mine[e.ID] = true
	return &delivery{f, e.ID, f.message(e), count}
}

func (f *feed) holds(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mine[id]
}

func (f *feed) settled(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mine, id)
}

// Extend implements [inbox.Feed]. An entry that was acknowledged stays so.
func (f *feed) Extend(ctx context.Context) error {
	f.turn.Lock()
	defer f.turn.Unlock()
	f.mu.Lock()
	args := []string{f.group, f.name, "0"}
	for id := range f.mine {
		args = append(args, id)
	}
	f.mu.Unlock()
	if len(args) == 3 {
		return nil
	}
	return f.failed("extend", f.client.Do(ctx, f.client.B().Arbitrary("XCLAIM").Keys(f.stream).Args(append(args, "JUSTID")...).Build()).Error())
}

// Close implements [inbox.Feed].
func (f *feed) Close(ctx context.Context) error {
	return f.failed("leave", leave.Exec(ctx, f.client, []string{f.stream}, []string{f.group, f.name}).Error())
}

// delivery is an entry in the hands of the consumer.
type delivery struct {
	feed  *feed
	entry string
	m     inbox.Message
	count int
}

// Message implements [inbox.Delivery].
func (d *delivery) Message() inbox.Message { return d.m }

// Count implements [inbox.Delivery].
func (d *delivery) Count() int { return d.count }

// Ack implements [inbox.Delivery].
func (d *delivery) Ack(ctx context.Context) error {
	f := d.feed
	defer f.settled(d.entry) // also after an error: then the entry is taken over again
	return f.failed("acknowledge", f.client.Do(ctx, f.client.B().Xack().Key(f.stream).Group(f.group).Id(d.entry).Build()).Error())
}

// Nack implements [inbox.Delivery]. The entry stays pending, with the time of its last delivery set so that Hold is over
// after the delay. The count of its deliveries is that before this one.
func (d *delivery) Nack(ctx context.Context, delay time.Duration) error {
	f := d.feed
	f.turn.RLock()
	defer f.turn.RUnlock()
	defer f.settled(d.entry)
	idle := max(0, f.opts.Hold-delay)
	args := []string{f.group, f.name, "0", d.entry, "IDLE", ms(idle), "RETRYCOUNT", strconv.Itoa(d.count - 1), "JUSTID"}
	return f.failed("give back", f.client.Do(ctx, f.client.B().Arbitrary("XCLAIM").Keys(f.stream).Args(args...).Build()).Error())
}

// Dead implements [inbox.Delivery].
func (d *delivery) Dead(ctx context.Context, reason string) error {
	f := d.feed
	err := dead.Exec(ctx, f.client, []string{f.stream, f.opts.Dead}, []string{f.group, d.entry, reason}).Error()
	if err == nil {
		f.settled(d.entry)
	}
	return f.failed("move to the dead letters", err)
}
