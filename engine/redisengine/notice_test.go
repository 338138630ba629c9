package redisengine

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// noticing is a session that is told of its claims, and the server that tells it.
type noticing struct {
	visitor
	servers []rueidis.Client
	gone    chan string
}

func notice(t *testing.T, servers ...*testservers.Server) *noticing {
	t.Helper()
	option := rueidis.ClientOption{InitAddress: []string{servers[0].Addr}, ForceSingleClient: len(servers) == 1}
	e := New(dial(t, servers[0].Addr), &Options{Notices: &option})
	if e.cluster {
		e.graceTTL = 100 * time.Millisecond
	} else {
		isNew(t, e)
	}
	t.Cleanup(func() { e.Close() })
	awaitGrace(t, e)
	n := &noticing{gone: make(chan string, 100)}
	for _, server := range servers {
		n.servers = append(n.servers, dialOne(t, server.Addr))
	}
	s, err := e.Open(sessiontest.Soon(t), engine.SessionOptions{TTL: time.Minute, Gone: func(claim string) { n.gone <- claim }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(sessiontest.Soon(t)) }) //nolint:errcheck // its store may be away
	n.visitor = visitor{s.(*session), t, t.Name()}
	return n
}

// tracked is how many servers will tell of something.
func (n *noticing) tracked() (sum int) {
	for _, raw := range n.servers {
		info, err := raw.Do(n.t.Context(), raw.B().Info().Section("stats").Build()).ToString()
		if err != nil {
			n.t.Fatal(err)
		}
		if !strings.Contains(info, "tracking_total_keys:0\r") {
			sum++
		}
	}
	return sum
}

// renews is what the session does when it is told, and now and then.
func (n *noticing) renews() (gone []*engine.Claim) {
	n.t.Helper()
	gone, err := n.Renew(sessiontest.Soon(n.t), []*engine.Claim{n.claim(all)})
	if err != nil {
		n.t.Fatal(err)
	}
	return gone
}

// watches renews, and waits until the server will tell.
func (n *noticing) watches() {
	n.t.Helper()
	n.renews()
	sessiontest.Until(n.t, "the server tracks the key", func() bool {
		n.mu.Lock()
		w := n.watched[n.engine.keys(n.name, "")[0]]
		on := w.on
		if !on {
			w.asked = time.Time{} // as if it were long ago
		}
		n.mu.Unlock()
		if !on {
			n.alarms.Ring()
		}
		return on && n.tracked() > 0
	})
	n.nothing()
}

// sees waits until a change of the head was looked at.
func (n *noticing) sees() {
	n.t.Helper()
	sessiontest.Until(n.t, "the change is seen", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		w := n.watched[n.engine.keys(n.name, "")[0]]
		return !w.on && !w.suspect
	})
}

// nothing fails if anything was told.
func (n *noticing) nothing() {
	n.t.Helper()
	if len(n.gone) > 0 {
		n.t.Fatalf("told of %q", <-n.gone)
	}
}

func (n *noticing) told() {
	n.t.Helper()
	select {
	case id := <-n.gone:
		if id != n.claim(all).ID {
			n.t.Errorf("told of %q", id)
		}
	case <-sessiontest.Soon(n.t).Done():
		n.t.Fatal("not told")
	}
}

func (n *noticing) does(words ...string) {
	n.t.Helper()
	for _, raw := range n.servers {
		if err := raw.Do(n.t.Context(), raw.B().Arbitrary(words...).Build()).Error(); err != nil {
			if _, moved := err.(*rueidis.RedisError).IsMoved(); !moved {
				n.t.Fatal(words, err)
			}
		}
	}
}

// TestDeletedByHand: a holder is told at once, with a minute to go until the next renewal, and that
// then finds the claim gone.
func TestDeletedByHand(t *testing.T) {
	for _, words := range [][]string{{"DEL", "KEY"}, {"RENAME", "KEY", "elsewhere"}, {"UNLINK", "KEY"}, {"FLUSHDB"}} {
		t.Run(words[0], func(t *testing.T) {
			n := notice(t, testservers.Redis(t))
			n.holds(all)
			n.watches()
			n.does(strings.Split(strings.ReplaceAll(strings.Join(words, " "), "KEY", "pawl:{"+n.name+"}"), " ")...)
			n.told()
			gone, err := n.Renew(sessiontest.Soon(t), []*engine.Claim{n.claim(all)})
			if words[0] == "FLUSHDB" && errors.Is(err, engine.ErrGone) { // the session too
				return
			}
			if err != nil || len(gone) != 1 {
				t.Errorf("gone: %v, %v", gone, err)
			}
		})
	}
}

// TestDeletedInCluster: it is told by the node that has the name.
func TestDeletedInCluster(t *testing.T) {
	n := notice(t, testservers.RedisCluster(t)...)
	n.holds(all)
	n.watches()
	n.does("DEL", "pawl:{"+t.Name()+"}")
	n.told()
	if gone := n.renews(); len(gone) != 1 {
		t.Errorf("gone: %v", gone)
	}
}

// TestToldOfWhatIsGone: a head that changes, though its holder still holds, is watched again and
// nothing is told. A head that changes all the time is not asked for all the time.
func TestToldOfWhatIsGone(t *testing.T) {
	n := notice(t, testservers.Redis(t))
	n.holds(all)
	n.watches()
	other := visit(t, n.engine, time.Minute, n.name)
	other.waits(all) // the head says now that somebody waits
	n.sees()
	n.mu.Lock()
	n.watched[n.engine.keys(n.name, "")[0]].asked = time.Now()
	n.mu.Unlock()
	n.attends()
	if n.tracked() > 0 {
		t.Error("asked again at once")
	}
	n.watches()
	n.does("DEL", "pawl:{"+n.name+"}", "pawl:{"+n.name+"}:q")
	n.told()
}

// TestNoticesOfNothing: a session without claims is told of nothing. A session that holds only for
// an instant is told of nothing either, though it was renewed just then.
func TestNoticesOfNothing(t *testing.T) {
	n := notice(t, testservers.Redis(t))
	if _, err := n.Renew(sessiontest.Soon(t), nil); err != nil {
		t.Fatal(err)
	}
	n.attends()
	n.holds(all)
	n.renews()
	n.leaves()
	n.attends()
	if n.tracked() > 0 {
		t.Error("the server remembers a key")
	}
}

// attends waits until the session has looked.
func (n *noticing) attends() {
	n.t.Helper()
	for range 2 { // the second alarm is taken after what the first one made it do
		n.alarms.Ring()
		sessiontest.Until(n.t, "it looks", func() bool { return len(n.alarms) == 0 })
	}
}

// hears waits until all was looked at that the server has told so far: its answer comes after that,
// over the one connection.
func (n *noticing) hears() {
	n.t.Helper()
	client, err := n.engine.notices.connect(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	if err := client.Do(n.t.Context(), client.B().Ping().Build()).Error(); err != nil {
		n.t.Fatal(err)
	}
	n.attends()
}

// TestLeftIsNotTold: a client that leaves knows.
func TestLeftIsNotTold(t *testing.T) {
	n := notice(t, testservers.Redis(t))
	n.holds(all)
	n.watches()
	n.leaves()
	n.hears()
	n.nothing()
}

// TestNoticesBreak: nobody knows what happened while the connection was not there.
func TestNoticesBreak(t *testing.T) {
	n := notice(t, testservers.Redis(t))
	n.holds(all)
	n.watches()
	clients, err := n.servers[0].Do(t.Context(), n.servers[0].B().ClientList().Build()).ToString()
	id := regexp.MustCompile(`(?m)^id=(\d+) .* flags=P?t `).FindStringSubmatch(clients)
	if err != nil || id == nil {
		t.Fatal(err, clients)
	}
	n.does("CLIENT", "KILL", "ID", id[1])
	n.watches()
	n.does("DEL", "pawl:{"+n.name+"}")
	n.told()
}

// TestNoticesRefused: a user who may not track keys locks without.
func TestNoticesRefused(t *testing.T) {
	server := testservers.RedisUser(t, "app", "s3cret", "~*", "&*", "+@all", "-client|tracking")
	option := rueidis.ClientOption{InitAddress: []string{server.Addr}, ForceSingleClient: true, Username: "app", Password: "s3cret"}
	own := option
	own.DisableCache = true
	client, err := rueidis.NewClient(own)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e := New(client, &Options{Notices: &option})
	defer e.Close() //nolint:errcheck // it returns nil
	awaitGrace(t, e)
	opened, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute, Gone: func(claim string) { t.Errorf("told of %q", claim) }})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close(context.Background()) //nolint:errcheck // checked elsewhere
	n := visitor{opened.(*session), t, t.Name()}
	n.holds(all)
	if gone, err := n.Renew(sessiontest.Soon(t), []*engine.Claim{n.claim(all)}); err != nil || len(gone) > 0 {
		t.Fatal(gone, err)
	}
	n.alarms.Ring()
	sessiontest.Until(t, "it is known that there are none", func() bool {
		return e.notices.option.Load() == nil
	})
	n.leaves()
}

// TestCloseTwice: a second Close ends, and so does a call on a closed engine.
func TestCloseTwice(t *testing.T) {
	n := notice(t, testservers.Redis(t))
	if err := n.Close(sessiontest.Soon(t)); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := n.engine.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := n.engine.notices.connect(sessiontest.Soon(t)); err != nil {
		t.Error(err)
	}
}
