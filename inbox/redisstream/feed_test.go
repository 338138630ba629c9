package redisstream_test

import (
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/redisstream"
	"github.com/pawl-go/pawl/internal/testservers"
)

// slow holds the command of Extend up, until a Nack is sent or for a while.
type slow struct {
	rueidis.Client
	extends, nacked chan struct{}
}

func (s *slow) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	switch idle := slices.Contains(words, "IDLE"); {
	case !slices.Contains(words, "JUSTID"):
	case idle:
		defer close(s.nacked)
	default:
		close(s.extends)
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
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(t).Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stream := rand.Text()
	add := client.B().Xadd().Key(stream).Id("*").FieldValue().FieldValue("id", "a").Build()
	if err := client.Do(t.Context(), add).Error(); err != nil {
		t.Fatal(err)
	}
	between := &slow{client, make(chan struct{}), make(chan struct{})}
	source, err := redisstream.New(between, stream, "g", &redisstream.Options{Hold: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Receive(t.Context(), 1)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	extended := make(chan error, 1)
	go func() { extended <- f.Extend(t.Context()) }()
	<-between.extends
	if err := got[0].Nack(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if err := <-extended; err != nil {
		t.Error(err)
	}
	got = nil
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

// open makes a stream with entries, and a feed of it.
func open(t *testing.T, entries int) (client rueidis.Client, stream string, f inbox.Feed) {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(t).Addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	stream = rand.Text()
	for n := range entries {
		add(t, client, stream, strconv.Itoa(n))
	}
	source, err := redisstream.New(client, stream, "g", &redisstream.Options{Hold: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if f, err = source.Open(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client, stream, f
}

func add(t *testing.T, client rueidis.Client, stream, id string) {
	t.Helper()
	if err := client.Do(t.Context(), client.B().Xadd().Key(stream).Id("*").FieldValue().FieldValue("id", id).Build()).Error(); err != nil {
		t.Fatal(err)
	}
}

// TestManyGivenBack: entries that come again at once, and are given back each time, hold up neither one another nor new entries.
func TestManyGivenBack(t *testing.T) {
	const entries, most = 200, 10
	client, stream, f := open(t, entries)
	seen := make(map[string]int)
	added := 0 // by this call
	for calls := 1; calls <= 300; calls++ {
		got, err := f.Receive(t.Context(), most)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			id := d.Message().ID
			if id == "new" {
				if calls > added+3 {
					t.Errorf("the new entry waits for %d calls", calls-added)
				}
				return
			}
			if seen[id]++; d.Count() != 1 {
				t.Fatalf("entry %s has the count %d", id, d.Count())
			}
			if err := d.Nack(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if added == 0 && seen["0"] > 2 && seen[strconv.Itoa(entries-1)] > 1 { // a scan has just begun, and the last one was whole
			add(t, client, stream, "new")
			added = calls
		}
	}
	t.Errorf("the new entry does not come; the others came as follows: %v", seen)
}
