package redisstream_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/publishertest"
	"github.com/pawl-go/pawl/internal/testservers"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/redisstream"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

func dial(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func publisher(t *testing.T, client rueidis.Client, opts *redisstream.Options) *redisstream.Publisher {
	t.Helper()
	p, err := redisstream.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// kept reads a stream from its first entry.
func kept(t *testing.T, client rueidis.Client, stream string) (all []outbox.Message) {
	t.Helper()
	entries, err := client.Do(t.Context(), client.B().Xrange().Key(stream).Start("-").End("+").Build()).AsXRange()
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); {
		entries, err = client.Do(t.Context(), client.B().Xrange().Key(stream).Start("-").End("+").Build()).AsXRange()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		f := e.FieldValues
		m := outbox.Message{ID: f[redisstream.FieldID], Topic: stream, Key: f[redisstream.FieldKey], Payload: []byte(f[redisstream.FieldPayload]), Headers: map[string]string{}}
		if m.Time, err = time.Parse(time.RFC3339, f[redisstream.FieldTime]); err != nil {
			t.Fatal(err)
		}
		for name, value := range f {
			if header, ok := strings.CutPrefix(name, redisstream.HeaderPrefix); ok {
				m.Headers[header] = value
			}
		}
		all = append(all, m)
	}
	return all
}

func TestPublisher(t *testing.T) {
	server := testservers.Redis(t, "--appendonly", "yes")
	client := dial(t, server.Addr)
	if err := client.Do(t.Context(), client.B().Set().Key("text").Value("x").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	publishertest.Run(t, publishertest.Broker{
		Publisher: publisher(t, client, nil), Topic: "orders",
		Kept: func(t *testing.T) []outbox.Message { return kept(t, client, "orders") },
		Kill: server.Kill, Restart: server.Restart, Pause: server.Pause, Resume: server.Resume,
		Refused: map[string]outbox.Message{"a key that is no stream": {Topic: "text"}},
	})
}

// TestMaxLen: a stream is cut to about the length that was asked for.
func TestMaxLen(t *testing.T) {
	client := dial(t, testservers.SharedRedis(t).Addr)
	p := publisher(t, client, &redisstream.Options{MaxLen: 100})
	for i := range 1000 {
		if err := p.Publish(t.Context(), outbox.Message{ID: fmt.Sprint(i), Topic: "short"}); err != nil {
			t.Fatal(err)
		}
	}
	all := kept(t, client, "short")
	if len(all) < 100 || len(all) > 300 || all[len(all)-1].ID != "999" {
		t.Errorf("%d entries", len(all))
	}
}

// TestBlocked: a server whose memory is full, or which gives the publisher no rights, blocks it. Nothing is refused.
func TestBlocked(t *testing.T) {
	server := testservers.Redis(t)
	client := dial(t, server.Addr)
	p := publisher(t, client, nil)
	set := func(args ...string) {
		if err := client.Do(t.Context(), client.B().Arbitrary(args...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for what, way := range map[string]struct{ begin, end []string }{
		"OOM":    {[]string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}},
		"NOPERM": {[]string{"ACL", "SETUSER", "default", "-xadd"}, []string{"ACL", "SETUSER", "default", "+xadd"}},
		"NOREPL": {[]string{"CONFIG", "SET", "min-replicas-to-write", "1"}, []string{"CONFIG", "SET", "min-replicas-to-write", "0"}},
	} {
		set(way.begin...)
		err := p.Publish(t.Context(), outbox.Message{ID: what, Topic: "orders"})
		if !errors.Is(err, outbox.ErrBlocked) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		t.Log(err)
		set(way.end...)
		if err := p.Publish(t.Context(), outbox.Message{ID: what, Topic: "orders"}); err != nil {
			t.Errorf("after %s: %v", what, err)
		}
	}
}

func TestOptions(t *testing.T) {
	if _, err := redisstream.New(nil, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	client := dial(t, testservers.SharedRedis(t).Addr)
	if _, err := redisstream.New(client, &redisstream.Options{MaxLen: -1}); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), "MaxLen") {
		t.Error(err)
	}
}
