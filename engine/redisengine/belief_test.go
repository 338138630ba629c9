package redisengine

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestBeliefsAreForgotten: a TTL that no client has had for long makes no grace longer. The TTL of a
// client that lives does, however short the sessions are that others open meanwhile.
func TestBeliefsAreForgotten(t *testing.T) {
	const long, short = 6 * time.Hour, 10 * time.Second
	for name, c := range map[string]struct {
		lives, ages bool // the session with the long TTL; and what the server knows of it
		want        time.Duration
	}{
		"closed":             {false, false, long},
		"closed a day ago":   {false, true, short},
		"lives":              {true, false, long},
		"opened a day ago":   {true, true, long},
		"of an older client": {false, false, long},
	} {
		t.Run(name, func(t *testing.T) {
			server := testservers.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
			e := onServer(t, server, 0)
			isNew(t, e)
			was, err := e.Open(t.Context(), engine.SessionOptions{TTL: long})
			if err != nil {
				t.Fatal(err)
			}
			if c.ages {
				does(t, e, "ZADD", "pawl:beliefs", "1", ms(long))
				visit(t, onServer(t, server, 0), short, "before") // the server forgets
			}
			if name == "of an older client" {
				does(t, e, "DEL", "pawl:beliefs")
			}
			if c.lives {
				was.(*session).known.touched = time.Time{} // long ago
				if _, err := was.Renew(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := was.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			visit(t, onServer(t, server, 0), short, "before")
			server.Kill()
			server.Restart()
			g := refused(t, visit(t, onServer(t, server, 0), short, "job").session, "job")
			if g.Left > c.want || g.Left < c.want-time.Minute {
				t.Errorf("the grace is %v, want %v", g.Left, c.want)
			}
		})
	}
}

// TestGraceTooShort: a grace that does not cover its own client is refused at the start.
func TestGraceTooShort(t *testing.T) {
	client := dialOne(t, testservers.Redis(t).Addr)
	_, err := New(client, &Options{Grace: 2 * time.Second}).Open(t.Context(), engine.SessionOptions{TTL: 20 * time.Second, Delay: 5 * time.Second})
	if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "grace of 2s") || !strings.Contains(err.Error(), "15s") {
		t.Errorf("opened: %v", err)
	}
	for grace, ttl := range map[time.Duration]time.Duration{0: time.Minute, 15 * time.Second: 15 * time.Second} {
		sessiontest.Open(t, New(client, &Options{Grace: grace}), ttl)
	}
	hold, err := New(client, &Options{Grace: time.Second}).Open(t.Context(), engine.SessionOptions{TTL: time.Hour, Delay: time.Hour})
	if err != nil {
		t.Fatalf("nobody believes in a minimum hold: %v", err)
	}
	hold.Close(t.Context()) //nolint:errcheck // not the point
}
