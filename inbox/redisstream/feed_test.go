package redisstream_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/redisstream"
	"github.com/pawl-go/pawl/internal/testservers"
)

// slow holds the command of Extend up, until a Nack is sent or for a while.
type slow struct {
	rueidis.Client
	extends, nacked chan struct{}
	once            sync.Once // a server that does not know a script gets it again
}

func (s *slow) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	switch {
	case !strings.HasPrefix(words[0], "EVAL") || len(words) < 9: // the script, its key, group, reader, idle time, count, entry
	case words[6] != "0":
		r := s.Client.Do(ctx, cmd)
		if r.Error() == nil {
			close(s.nacked)
		}
		return r
	default:
		s.once.Do(func() { close(s.extends) })
		timer := time.NewTimer(200 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-s.nacked:
		case <-timer.C:
		}
	}
	return s.Client.Do(ctx, cmd)
}

// TestExtendBesideNack: an Extend that is under way takes no entry back that a Nack gives to others.
func TestExtendBesideNack(t *testing.T) {
	client, stream := connect(t), rand.Text()
	add(t, client, stream, "a")
	between := &slow{Client: client, extends: make(chan struct{}), nacked: make(chan struct{})}
	f := feed(t, between, stream, "g", &redisstream.Options{Hold: time.Hour})
	got := take(t, f, 1)
	extended := make(chan error, 1)
	go func() { extended <- f.Extend(t.Context()) }()
	<-between.extends
	if err := got[0].Nack(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-extended; err != nil {
		t.Error(err)
	}
	got = nil
	var err error
	for tries := 0; len(got) == 0 && tries < 3; tries++ { // the feed looks for such entries each second
		if got, err = f.Receive(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) == 0 {
		t.Error("the entry is not given to a reader again")
	}
	if err := f.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// connect returns a client of the shared server.
func connect(t *testing.T) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(t).Addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// feed opens a feed of a group.
func feed(t *testing.T, client rueidis.Client, stream, group string, opts *redisstream.Options) inbox.Feed {
	t.Helper()
	source, err := redisstream.New(client, stream, group, opts)
	if err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// take receives so many entries at once.
func take(t *testing.T, f inbox.Feed, n int) []inbox.Delivery {
	t.Helper()
	got, err := f.Receive(t.Context(), n)
	if err != nil || len(got) != n {
		t.Fatal(got, err)
	}
	return got
}

// open makes a stream with entries, and a feed of it.
func open(t *testing.T, entries int) (client rueidis.Client, stream string, f inbox.Feed) {
	t.Helper()
	client, stream = connect(t), rand.Text()
	for n := range entries {
		add(t, client, stream, strconv.Itoa(n))
	}
	f = feed(t, client, stream, "g", &redisstream.Options{Hold: 200 * time.Millisecond})
	t.Cleanup(func() {
		if err := f.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client, stream, f
}

func add(t *testing.T, client rueidis.Client, stream, id string) {
	t.Helper()
	if err := client.Do(t.Context(), client.B().Xadd().Key(stream).Id("*").FieldValue().FieldValue("id", id).FieldValue("payload", "content").Build()).Error(); err != nil {
		t.Fatal(err)
	}
}

// TestUnload: an entry that waits without its content stays with its feed, and counts no delivery. When the content was loaded again, the delivery counts.
func TestUnload(t *testing.T) {
	client, stream, f := open(t, 3)
	got := take(t, f, 3)
	pending := func() (counts []int64) {
		rows, err := client.Do(t.Context(), client.B().Arbitrary("XPENDING").Keys(stream).Args("g", "-", "+", "9").Build()).ToArray()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			all, _ := row.ToArray()
			n, err := all[3].ToInt64()
			if err != nil {
				t.Fatal(err)
			}
			counts = append(counts, n)
		}
		return counts
	}
	got[1].Unload()
	got[2].Unload()
	if m := got[1].Message(); m.ID != "1" || m.Payload != nil || m.Headers != nil {
		t.Errorf("%+v", m)
	}
	if err := f.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if counts := pending(); !slices.Equal(counts, []int64{1, 0, 0}) {
		t.Errorf("the counts are %v", counts)
	}
	if m, err := got[1].Load(t.Context()); err != nil || m.ID != "1" || string(m.Payload) != "content" {
		t.Errorf("%+v, %v", m, err)
	}
	if err := f.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if counts := pending(); !slices.Equal(counts, []int64{1, 1, 0}) {
		t.Errorf("the counts are %v", counts)
	}
	if err := client.Do(t.Context(), client.B().Xtrim().Key(stream).Maxlen().Threshold("0").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if _, err := got[2].Load(t.Context()); !errors.Is(err, inbox.ErrGone) {
		t.Errorf("of an entry that the stream has lost: %v", err)
	}
}

// TestMaxPending: a feed takes so many entries, and then waits until some are settled.
func TestMaxPending(t *testing.T) {
	client, stream, _ := open(t, 5)
	f := feed(t, client, stream, "h", &redisstream.Options{MaxPending: 3})
	got, err := f.Receive(t.Context(), 10)
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if more, err := f.Receive(ctx, 10); len(more) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(more, err)
	}
	rest := make(chan int, 1)
	go func() {
		more, _ := f.Receive(t.Context(), 10)
		rest <- len(more)
	}()
	if err := got[0].Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := <-rest; n != 1 {
		t.Errorf("%d entries came", n)
	}
	for _, n := range []int{-1, 10_000_001} {
		if _, err := redisstream.New(client, stream, "h", &redisstream.Options{MaxPending: n}); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%d: %v", n, err)
		}
	}
	if err := f.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// forget lets the server forget what the group has read, as after a failover that lost the last reads.
func forget(t *testing.T, client rueidis.Client, stream, group string) {
	t.Helper()
	b := client.B()
	if err := client.Do(t.Context(), b.XgroupDestroy().Key(stream).Group(group).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if err := client.Do(t.Context(), b.XgroupCreate().Key(stream).Group(group).Id("0").Build()).Error(); err != nil {
		t.Fatal(err)
	}
}

// TestLoadForgotten: an entry whose delivery the server has forgotten is not gone, because nobody has settled it. An entry that somebody has settled is.
func TestLoadForgotten(t *testing.T) {
	client, stream, f := open(t, 3)
	got := take(t, f, 3)
	for _, d := range got {
		d.Unload()
	}
	forget(t, client, stream, "g")
	if m, err := got[1].Load(t.Context()); err != nil || m.ID != "1" || string(m.Payload) != "content" {
		t.Errorf("%+v, %v", m, err)
	}
	again := take(t, f, 2)
	if err := again[0].Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := got[0].Load(t.Context()); !errors.Is(err, inbox.ErrGone) {
		t.Errorf("of an entry that was settled: %v", err)
	}
	if m, err := got[1].Load(t.Context()); err != nil || m.ID != "1" {
		t.Errorf("of an entry that was read again: %+v, %v", m, err)
	}
	if err := client.Do(t.Context(), client.B().Xdel().Key(stream).Id(entryOf(t, client, stream, 2)).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if _, err := got[2].Load(t.Context()); !errors.Is(err, inbox.ErrGone) {
		t.Errorf("of an entry that was deleted: %v", err)
	}
}

// entryOf returns the ID of an entry, counted from 0.
func entryOf(t *testing.T, client rueidis.Client, stream string, n int) string {
	t.Helper()
	all, err := client.Do(t.Context(), client.B().Xrange().Key(stream).Start("-").End("+").Build()).AsXRange()
	if err != nil || len(all) <= n {
		t.Fatal(all, err)
	}
	return all[n].ID
}

// TestFullFeedOfADeletedGroup: a feed that has MaxPending entries fails when somebody has deleted the group. No entry could be settled any more.
func TestFullFeedOfADeletedGroup(t *testing.T) {
	client, stream, _ := open(t, 3)
	f := feed(t, client, stream, "h", &redisstream.Options{MaxPending: 2, Hold: 400 * time.Millisecond})
	if got, err := f.Receive(t.Context(), 3); err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if err := client.Do(t.Context(), client.B().XgroupDestroy().Key(stream).Group("h").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if got, err := f.Receive(ctx, 3); err == nil || ctx.Err() != nil {
		t.Error(got, err)
	}
}
