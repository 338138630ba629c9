package redisengine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

const formatKey = "pawl:format"

// marked sets the mark of a cluster.
func marked(t *testing.T, client rueidis.Client, format string) {
	t.Helper()
	if err := client.Do(t.Context(), client.B().Set().Key(formatKey).Value(format).Px(time.Hour).Build()).Error(); err != nil {
		t.Fatal(err)
	}
}

// isRefused fails the test unless an error names both formats.
func isRefused(t *testing.T, format, verb string, err error) {
	t.Helper()
	if !errors.Is(err, engine.ErrUnsupported) || errors.Is(err, engine.ErrUnavailable) ||
		!strings.Contains(err.Error(), "format "+format+" ") || !strings.Contains(err.Error(), "format "+engine.Format()+":") {
		t.Errorf("%s on format %s: %v", verb, format, err)
	}
}

// allRefused fails the test unless each verb is refused on a store of a format, and puts nothing there.
func allRefused(t *testing.T, e *Engine, format string) {
	t.Helper()
	_, opening := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
	_, showing := e.Show(t.Context(), "job")
	_, putting := e.Put(t.Context(), "value", []byte("x"), 0)
	for verb, err := range map[string]error{
		"open": opening, "show": showing, "put": putting,
		"resize": e.Resize(t.Context(), "job", 2), "evict": e.Evict(t.Context(), "job", "claim"),
	} {
		isRefused(t, format, verb, err)
	}
	if v, err := e.Get(t.Context(), "value"); err != nil || v.Version != 0 {
		t.Errorf("put wrote into format %s: %+v, %v", format, v, err)
	}
}

// TestOtherFormatInACluster: a cluster in use by another format refuses each verb, with both formats named, and is not changed.
func TestOtherFormatInACluster(t *testing.T) {
	client := dial(t, testservers.RedisCluster(t)[0].Addr)
	marked(t, client, "9")
	allRefused(t, New(client, nil), "9")
	if is, err := client.Do(t.Context(), client.B().Get().Key(formatKey).Build()).ToString(); is != "9" {
		t.Errorf("the mark became %q, %v", is, err)
	}
}

// A session keeps the mark of a cluster for longer than its own life, and a Put of another engine finds the mark. A session that finds another
// mark at a renewal is refused.
func TestMarkOfACluster(t *testing.T) {
	const ttl = time.Minute
	client := dial(t, testservers.RedisCluster(t)[0].Addr)
	e := New(client, nil)
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) }) //nolint:errcheck // the server goes as well
	stays := func(when string) {
		t.Helper()
		if left, err := client.Do(t.Context(), client.B().Pttl().Key(formatKey).Build()).AsInt64(); err != nil || left <= ttl.Milliseconds() {
			t.Errorf("%s the mark stays for %d ms, %v, and the session for %v", when, left, err, ttl)
		}
	}
	stays("after open")
	if err := client.Do(t.Context(), client.B().Pexpire().Key(formatKey).Milliseconds(1000).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	s.(*session).known.touched = time.Time{}
	if _, err := s.Renew(t.Context(), nil); err != nil {
		t.Error(err)
	}
	stays("after a renewal")
	if _, err := New(client, nil).Put(t.Context(), "value", []byte("x"), 0); err != nil {
		t.Error(err)
	}
	marked(t, client, "9") // the store was flushed, and another build came first
	s.(*session).known.touched = time.Time{}
	_, err = s.Renew(t.Context(), nil)
	isRefused(t, "9", "renew", err)
}

// The node with the mark hangs. A session whose own slots are on other nodes is renewed all the same.
func TestMarkOnANodeThatHangs(t *testing.T) {
	c := newCluster(t)
	e := New(c.client, &Options{Grace: 100 * time.Millisecond})
	mark, _ := c.node(formatKey)
	other := (mark + 1) % len(c.nodes)
	var s visitor
	for s = visit(t, e, time.Minute, c.on(other)); ; s = visit(t, e, time.Minute, c.on(other)) {
		if home, _ := c.node(s.key); home != mark {
			break
		}
	}
	s.holds(all)
	s.known.touched = time.Time{}
	c.nodes[mark].Pause()
	defer c.nodes[mark].Resume()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	if gone, err := s.Renew(ctx, []*engine.Claim{s.claim(all)}); err != nil || len(gone) > 0 {
		t.Errorf("renewal: gone %v, %v", gone, err)
	}
}
