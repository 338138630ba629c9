package redisstream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
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
	single   bool      // no other process reads
	recovers bool      // the entries that others have not acknowledged come first
	after    string    // behind this entry the scan for entries of others goes on
	scanned  time.Time // the end of the last scan, the zero time at first

	mu    sync.Mutex
	mine  map[string]*delivery // entries that are handed out and not settled
	freed chan struct{}        // has a place for one

	turn sync.RWMutex // of Extend, or of any number of Nacks and Loads, because an Extend that comes after them would undo them
}

// batch is how many entries one command extends.
const batch = 1000

// Hold implements [inbox.Feed].
func (f *feed) Hold() time.Duration { return f.opts.Hold }

// Receive implements [inbox.Feed]. Entries of processes that died come before new ones.
func (f *feed) Receive(ctx context.Context, most int) ([]inbox.Delivery, error) {
	most, err := f.room(ctx, most)
	if err != nil {
		return nil, err
	}
	for f.recovers {
		got, full, err := f.claim(ctx, 0, most)
		if f.recovers = full; err != nil || len(got) > 0 {
			return got, err
		}
	}
	if time.Since(f.scanned) >= f.pause() {
		f.after = "-"
		for full := true; full; { // of entries of this feed, after a late Extend
			var got []inbox.Delivery
			if got, full, err = f.claim(ctx, f.opts.Hold, most); err != nil || len(got) > 0 {
				return got, err
			}
		}
		f.scanned = time.Now()
	}
	return f.read(ctx, most, min(f.opts.Block, f.pause()))
}

// pause is the time between two looks at what the group has.
func (f *feed) pause() time.Duration { return min(f.opts.Hold/4, time.Second) }

// room waits until fewer than MaxPending entries are not settled, and returns how many there may come. Without the group none could be settled.
func (f *feed) room(ctx context.Context, most int) (int, error) {
	tick := time.NewTicker(f.pause())
	defer tick.Stop()
	for {
		f.mu.Lock()
		n := f.opts.MaxPending - len(f.mine)
		f.mu.Unlock()
		if n > 0 {
			return min(n, most), nil
		}
		select {
		case <-f.freed:
		case <-tick.C:
			if err := f.client.Do(ctx, f.client.B().Xpending().Key(f.stream).Group(f.group).Build()).Error(); err != nil {
				return 0, f.failed("ask for the pending entries", err)
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// read waits for new entries.
func (f *feed) read(ctx context.Context, most int, block time.Duration) ([]inbox.Delivery, error) {
	b := f.client.B()
	ctx, cancel := context.WithTimeout(ctx, block+answer) // a server whose machine is gone closes no connection
	defer cancel()
	all, err := f.client.Do(ctx, b.Xreadgroup().Group(f.group, f.name).Count(int64(most)).Block(max(1, block.Milliseconds())).Streams().Key(f.stream).Id(">").Build()).AsXRead()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	if err != nil {
		return nil, f.failed("read", err)
	}
	if f.single {
		if err := f.alone(ctx); err != nil {
			return nil, f.failed("look for other readers", err)
		}
	}
	var got []inbox.Delivery
	for _, e := range all[f.stream] {
		got = append(got, f.hand(e, 1))
	}
	return got, nil
}

// errOther says that later entries of a key might overtake an earlier one.
var errOther = errors.New("another consumer has entries, as when a read of an earlier feed comes late, or when a process reads without Single")

// alone looks whether all pending entries are with this feed. After the error the next feed takes all of them over, in their order.
func (f *feed) alone(ctx context.Context) error {
	is, err := f.client.Do(ctx, f.client.B().Xpending().Key(f.stream).Group(f.group).Build()).ToArray()
	if err != nil || len(is) < 4 || is[3].IsNil() {
		return err
	}
	readers, err := is[3].ToArray()
	for _, one := range readers {
		if reader, err := one.AsStrSlice(); err != nil || reader[0] != f.name {
			return cmp.Or(err, errOther)
		}
	}
	return err
}

// claim takes entries that others have held for so long without a sign of life, in the order of the stream. XPENDING with
// XCLAIM says how often an entry was delivered, and XAUTOCLAIM does not. Full says that there may be more.
func (f *feed) claim(ctx context.Context, idle time.Duration, most int) (got []inbox.Delivery, full bool, _ error) {
	list, err := f.client.Do(ctx, f.client.B().Arbitrary("XPENDING").Keys(f.stream).Args(f.group, "IDLE", ms(idle), f.after, "+", strconv.Itoa(most)).Build()).ToArray()
	if err != nil {
		return nil, true, f.failed("list the pending entries", err)
	}
	counts, own := make(map[string]int), make(map[string]bool)
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
		reader, _ := row[1].ToString()
		n, _ := row[3].ToInt64()
		if f.holds(id) && !f.recovers {
			continue
		}
		counts[id], ids = int(n)+1, append(ids, id)
		if strings.HasPrefix(reader, f.process) { // an earlier feed has failed, and its process lives
			counts[id], own[id] = max(1, cmp.Or(f.had(id), int(n))), true
		}
		f.note(id, counts[id]) // the server counts also a claim whose answer is lost
	}
	if full = len(list) == most; len(counts) == 0 {
		return nil, full, nil
	}
	entries, removed, err := claimed(f.client.Do(ctx, f.client.B().Arbitrary("XCLAIM").Keys(f.stream).Args(ids...).Build()))
	if err == nil && removed {
		err = drop.Exec(ctx, f.client, []string{f.stream}, append([]string{f.group, f.name}, ids[3:]...)).Error()
	}
	if err != nil {
		return nil, true, f.failed("take over", err)
	}
	lower := make(map[int][]string)
	for _, e := range entries {
		n := counts[e.ID]
		if own[e.ID] {
			lower[n] = append(lower[n], e.ID)
		}
		got = append(got, f.hand(e, n))
	}
	return got, full, f.failed("take over", f.keep(ctx, lower))
}

// claimed reads an answer to XCLAIM. Redis before 7.0 answers nil for an entry that was removed from the stream, and leaves that entry pending.
func claimed(r rueidis.RedisResult) (entries []rueidis.XRangeEntry, removed bool, _ error) {
	list, err := r.ToArray()
	for _, one := range list {
		if one.IsNil() {
			removed = true
			continue
		}
		e, err := one.AsXRangeEntry()
		if err != nil {
			return nil, false, err
		}
		entries = append(entries, e)
	}
	return entries, removed, err
}

func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func (f *feed) hand(e rueidis.XRangeEntry, count int) inbox.Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := &delivery{feed: f, entry: e.ID, m: f.message(e), count: count}
	f.mine[e.ID] = d
	f.note(e.ID, count)
	return d
}

func (f *feed) holds(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mine[id] != nil
}

func (f *feed) settled(id string) {
	f.mu.Lock()
	f.note(id, 0)
	f.mu.Unlock()
	f.forget(id)
}

// forget ends the work of this feed on an entry.
func (f *feed) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mine, id)
	select {
	case f.freed <- struct{}{}:
	default:
	}
}

// Extend implements [inbox.Feed]. An entry that was acknowledged stays so. An entry that another reader has taken stays with that reader. An entry whose content was unloaded counts no delivery if this process
// dies.
func (f *feed) Extend(ctx context.Context) error {
	f.turn.Lock()
	defer f.turn.Unlock()
	f.mu.Lock()
	all := make(map[int][]string)
	for id, d := range f.mine {
		count := -1
		if d.unloaded {
			count = d.count - 1
		}
		all[count] = append(all[count], id)
	}
	f.mu.Unlock()
	return f.failed("extend", f.keep(ctx, all))
}

// keep keeps entries, by the counts of deliveries that they get, or -1 for no change.
func (f *feed) keep(ctx context.Context, all map[int][]string) error {
	for count, ids := range all {
		for part := range slices.Chunk(ids, batch) {
			if err := f.touch(ctx, 0, count, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// touch sets since when entries of this feed are idle, and their count of deliveries, or -1 for no change.
func (f *feed) touch(ctx context.Context, idle time.Duration, count int, ids []string) error {
	return touch.Exec(ctx, f.client, []string{f.stream}, append([]string{f.group, f.name, ms(idle), strconv.Itoa(count)}, ids...)).Error()
}

// Close implements [inbox.Feed].
func (f *feed) Close(ctx context.Context) error {
	return f.failed("leave", leave.Exec(ctx, f.client, []string{f.stream}, []string{f.group, f.name}).Error())
}

// delivery is an entry in the hands of the consumer.
type delivery struct {
	feed  *feed
	entry string
	count int

	// The feed's mutex guards the fields below.
	m        inbox.Message
	unloaded bool
}

// Message implements [inbox.Delivery].
func (d *delivery) Message() inbox.Message {
	d.feed.mu.Lock()
	defer d.feed.mu.Unlock()
	return d.m
}

// Unload implements [inbox.Delivery].
func (d *delivery) Unload() {
	d.feed.mu.Lock()
	defer d.feed.mu.Unlock()
	d.m.Headers, d.m.Payload, d.unloaded = nil, nil, true
}

// Load implements [inbox.Delivery]. The entry counts this delivery again, unless another reader has taken that entry.
func (d *delivery) Load(ctx context.Context) (inbox.Message, error) {
	f := d.feed
	f.turn.RLock()
	defer f.turn.RUnlock()
	all, err := load.Exec(ctx, f.client, []string{f.stream}, []string{f.group, f.name, d.entry, strconv.Itoa(d.count)}).AsXRange()
	if err == nil && len(all) == 0 {
		err = inbox.ErrGone
	}
	if err != nil {
		return inbox.Message{}, f.failed("load", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d.unloaded = false
	return f.message(all[0]), nil
}

// Count implements [inbox.Delivery].
func (d *delivery) Count() int { return d.count }

// Ack implements [inbox.Delivery].
func (d *delivery) Ack(ctx context.Context) error {
	f := d.feed
	defer f.settled(d.entry) // also after an error: then the entry is taken over again
	return f.failed("acknowledge", f.client.Do(ctx, f.client.B().Xack().Key(f.stream).Group(f.group).Id(d.entry).Build()).Error())
}

// Nack implements [inbox.Delivery]. An entry that is still with this feed stays pending, with the time of its last delivery set so that Hold is over.
// The count of its deliveries is that before this one.
func (d *delivery) Nack(ctx context.Context) error {
	f := d.feed
	f.turn.RLock()
	defer f.turn.RUnlock()
	defer f.note(d.entry, d.count) // this process may read on
	defer f.settled(d.entry)
	return f.failed("give back", f.touch(ctx, f.opts.Hold, d.count-1, []string{d.entry}))
}

// Dead implements [inbox.Delivery]. A reader that has taken an entry over decides the fate of that entry. An entry that is
// pending for nobody is no error: the letter may be that of an earlier try, whose answer was lost.
func (d *delivery) Dead(ctx context.Context, reason string) error {
	f := d.feed
	done, err := dead.Exec(ctx, f.client, []string{f.stream, f.opts.Dead}, []string{f.group, d.entry, reason, f.name}).AsInt64()
	switch {
	case err == nil && done == 0: // the count is that of another delivery, which may be of this process
		f.forget(d.entry)
		err = inbox.ErrTaken
	case err == nil:
		f.settled(d.entry)
	}
	return f.failed("move to the dead letters", err)
}
