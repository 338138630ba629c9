package redisstream_test

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/redisstream"
)

// older answers XCLAIM as Redis before 7.0 does when the first entry was removed from its stream: by a nil. That entry stays pending.
type older struct{ rueidis.Client }

func (o older) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	if words[0] != "XCLAIM" || slices.Contains(words, "JUSTID") {
		return o.Client.Do(ctx, cmd)
	}
	return rueidis.NewLuaScript(`
local all = redis.call('XCLAIM', KEYS[1], unpack(ARGV))
if not all[1] then return all end
redis.call('XDEL', KEYS[1], all[1][1])
all[1] = false
return all`).Exec(ctx, o.Client, words[1:2], words[2:])
}

// TestClaimRemoved: a removed entry does not hide the entries that are taken over with that entry. The removed entry is pending no more.
func TestClaimRemoved(t *testing.T) {
	client, stream := connect(t), rand.Text()
	for _, id := range []string{"a", "b", "c"} {
		add(t, client, stream, id)
	}
	take(t, feed(t, client, stream, "g", nil), 3)
	source, err := redisstream.New(older{client}, stream, "g", nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := single(t, source).Receive(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	if ids := idsOf(got); ids != "b c" {
		t.Errorf("got %q", ids)
	}
	if n, err := client.Do(t.Context(), client.B().Xpending().Key(stream).Group("g").Build()).ToArray(); err != nil || len(n) == 0 {
		t.Error(err)
	} else if pending, err := n[0].ToInt64(); err != nil || pending != 2 {
		t.Errorf("%d entries are pending, %v", pending, err)
	}
}

func idsOf(all []inbox.Delivery) string {
	var ids []string
	for _, d := range all {
		ids = append(ids, d.Message().ID)
	}
	return strings.Join(ids, " ")
}

// single opens a feed for the only process that reads.
func single(t *testing.T, source *redisstream.Source) inbox.Feed {
	t.Helper()
	f, err := source.Open(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestLateRead: with Single a read of an earlier feed that the server gets late does not let later entries overtake the entry of that read.
func TestLateRead(t *testing.T) {
	client, stream := connect(t), rand.Text()
	source, err := redisstream.New(client, stream, "g", &redisstream.Options{Block: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f := single(t, source)
	if got, err := f.Receive(t.Context(), 10); err != nil || len(got) > 0 {
		t.Fatal(got, err)
	}
	add(t, client, stream, "e1")
	if err := client.Do(t.Context(), client.B().Xreadgroup().Group("g", "late").Count(1).Streams().Key(stream).Id(">").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	add(t, client, stream, "e2")
	got, err := f.Receive(t.Context(), 10)
	if err == nil {
		t.Fatalf("got %q beside an entry of another reader", idsOf(got))
	}
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := single(t, source).Receive(t.Context(), 10); err != nil || idsOf(got) != "e1 e2" {
		t.Errorf("got %q, %v", idsOf(got), err)
	}
}

// TestCountOfFeeds: a feed that fails counts no delivery, because its process goes on. A process that takes the entry over counts one.
func TestCountOfFeeds(t *testing.T) {
	client, stream := connect(t), rand.Text()
	newSource := func() *redisstream.Source {
		source, err := redisstream.New(client, stream, "g", nil)
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	source, later := newSource(), newSource()
	add(t, client, stream, "e1")
	for _, c := range []struct {
		source *redisstream.Source
		count  int
		parked bool // then the server has a lower count
	}{{source, 1, false}, {source, 1, true}, {source, 1, false}, {later, 2, false}, {later, 2, true}, {later, 2, false}, {source, 3, true}, {later, 3, false}} {
		f := single(t, c.source)
		got := take(t, f, 1)
		if got[0].Count() != c.count {
			t.Errorf("the count is %d: want %d", got[0].Count(), c.count)
		}
		if c.parked {
			got[0].Unload()
		}
		if err := f.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostReader: a reader that goes on after another has taken its entries over takes none of them back. With Single, the feed of the other reader would fail.
func TestLostReader(t *testing.T) {
	client, stream := connect(t), rand.Text()
	newSource := func() *redisstream.Source {
		source, err := redisstream.New(client, stream, "g", &redisstream.Options{Block: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	for _, id := range []string{"a", "b", "c"} {
		add(t, client, stream, id)
	}
	f1, f2 := single(t, newSource()), single(t, newSource())
	lost := take(t, f1, 3)
	for _, d := range take(t, f2, 3) {
		if d.Count() != 2 {
			t.Errorf("the count of %s is %d", d.Message().ID, d.Count())
		}
	}
	lost[2].Unload()
	for what, act := range map[string]func() error{
		"Extend": func() error { return f1.Extend(t.Context()) },
		"Nack":   func() error { return lost[1].Nack(t.Context()) },
		"Load":   func() error { _, err := lost[2].Load(t.Context()); return err },
	} {
		if err := act(); err != nil {
			t.Error(what, err)
		}
		add(t, client, stream, what)
		if got, err := f2.Receive(t.Context(), 9); err != nil || idsOf(got) != what {
			t.Errorf("after %s: got %q, %v", what, idsOf(got), err)
		}
	}
	for _, d := range take(t, single(t, newSource()), 6)[:3] {
		if d.Count() != 3 {
			t.Errorf("the count of %s is %d", d.Message().ID, d.Count())
		}
	}
}

// deaf loses the answers to some commands.
type deaf struct {
	rueidis.Client
	command string
	times   int
}

func (d *deaf) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	is := d.times > 0 && cmd.Commands()[0] == d.command
	r := d.Client.Do(ctx, cmd)
	if is {
		d.times--
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return d.Client.Do(ended, d.Client.B().Ping().Build())
	}
	return r
}

// TestCountOfLostAnswers: a process that does not get the answers to its reads counts one delivery, and so it does after a Nack.
func TestCountOfLostAnswers(t *testing.T) {
	for _, c := range []struct {
		command      string
		times, count int
	}{{"XREADGROUP", 1, 1}, {"XCLAIM", 5, 2}} {
		t.Run(c.command, func(t *testing.T) {
			client, stream := connect(t), rand.Text()
			loses := &deaf{client, c.command, c.times}
			source, err := redisstream.New(loses, stream, "g", nil)
			if err != nil {
				t.Fatal(err)
			}
			add(t, client, stream, "e1")
			if c.command == "XCLAIM" {
				take(t, feed(t, client, stream, "g", nil), 1) // of a process that dies
			}
			for loses.times > 0 {
				if got, err := single(t, source).Receive(t.Context(), 1); err == nil {
					t.Fatal(got)
				}
			}
			for range 3 {
				d := take(t, single(t, source), 1)[0]
				if d.Count() != c.count {
					t.Errorf("the count is %d: want %d", d.Count(), c.count)
				}
				if err := d.Nack(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
