package redisengine

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestClusterFlush is what the documentation admits: only clients that are told of deleted keys
// notice that a cluster is flushed. The next holder's token is larger.
func TestClusterFlush(t *testing.T) {
	c := newCluster(t)
	option := rueidis.ClientOption{InitAddress: []string{c.nodes[0].Addr}}
	e := New(c.client, &Options{Grace: time.Millisecond, Notices: &option})
	t.Cleanup(func() { e.Close() })
	awaitGrace(t, e)
	gone := make(chan string, 1)
	opened, err := e.Open(t.Context(), engine.SessionOptions{TTL: 3 * time.Second, Gone: func(claim string) {
		select {
		case gone <- claim:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close(sessiontest.Soon(t)) }) //nolint:errcheck // it is gone
	s := opened.(*session)
	claim := plainClaim(s, "flushed", "held")
	first := sessiontest.Hold(t, s, claim)
	if _, err := s.Renew(t.Context(), []*engine.Claim{claim}); err != nil {
		t.Fatal(err)
	}
	sessiontest.Until(t, "the head is watched", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		w := s.watched[e.keys("flushed", "")[0]]
		return w != nil && w.on
	})
	for node := range c.nodes {
		c.ask(node, "FLUSHALL")
	}
	select {
	case <-gone:
	case <-sessiontest.Soon(t).Done():
		t.Error("the holder is not told")
	}
	other := c.session(e, time.Minute, 0)
	if second := sessiontest.Hold(t, other, plainClaim(other, "flushed", "next")); second <= first {
		t.Errorf("token %v after %v", second, first)
	}
}
