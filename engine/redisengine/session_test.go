package redisengine

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestGrantedWhenAskedAgain: a waiter that got its grant by entering again is a holder as any
// other. Such a waiter is told when an operator takes the claim.
func TestGrantedWhenAskedAgain(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	before := visit(t, e, time.Minute, "asked again")
	gone := make(chan string, 1)
	opened, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute, Gone: func(claim string) { gone <- claim }})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close(context.Background()) //nolint:errcheck // checked elsewhere
	after := visitor{opened.(*session), t, before.name}
	before.holds(all)
	after.waits(all)
	before.leaves()
	after.holds(all)
	sessiontest.Leave(t, before.session, after.claim(all))
	select {
	case id := <-gone:
		if id != after.id+".claim" {
			t.Errorf("told of %q", id)
		}
	case <-time.After(time.Minute):
		t.Error("not told")
	}
	if n := after.inbox.Len(); n > 0 {
		t.Errorf("%d claims still wait", n)
	}
}

// TestPrefixIsText: a prefix is not read as code, whatever is in it.
func TestPrefixIsText(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), &Options{Prefix: "a'..x..'\\\r\n\x00{*?[^]--\"]]%s:"})
	awaitGrace(t, e)
	holder, waiter := visit(t, e, time.Minute, "text"), visit(t, e, time.Minute, "text")
	holder.holds(all)
	waiter.waits(all)
	for name, err := range e.List(t.Context(), "te") {
		if err != nil || name != "text" && name != "" {
			t.Errorf("list %q, %v", name, err)
		}
	}
	holder.leaves()
	sessiontest.Await(t, waiter.session, waiter.claim(all))
}

// TestHangWhileWaiting: a server that does not say what became of a claim is
// unavailable, however long its caller would wait.
func TestHangWhileWaiting(t *testing.T) {
	server := testservers.SharedRedis(t)
	link := proxy.New(t, server.Addr)
	e := New(dial(t, server.Addr), nil)
	awaitGrace(t, e)
	visit(t, e, time.Minute, "hangs").holds(all)
	waiter := visit(t, New(dial(t, link.Addr), nil), 200*time.Millisecond, "hangs")
	waiter.waits(all)
	link.Freeze()
	defer link.Heal()
	if g, err := waiter.Await(t.Context(), waiter.claim(all)); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(g, err)
	}
}

// losing is a client that loses the answers of scripts.
type losing struct {
	Client
	lost *atomic.Bool
}

func (l losing) Do(ctx context.Context, c Command) Reply {
	r := l.Client.Do(ctx, c)
	if strings.HasPrefix(c.Head[0], "EVAL") && l.lost.Load() {
		return Reply{Err: errors.New("the answer is lost")}
	}
	return r
}

// TestLeaveReadsNoLine: a claim leaves a long line without a look at all who wait. So does a claim whose
// answer was lost, and a claim that has left before.
func TestLeaveReadsNoLine(t *testing.T) {
	server := testservers.Redis(t)
	raw := onServer(t, server, 0)
	isNew(t, raw)
	e := NewOn(losing{onRueidis{dialOne(t, server.Addr)}, new(atomic.Bool)}, nil)
	lost := e.client.(ending).Client.(losing).lost
	visit(t, raw, time.Minute, "line").holds(all)
	visit(t, raw, time.Minute, "line").waits(all)
	v := visit(t, e, time.Minute, "line")
	ids := func() int {
		r, err := raw.Show(t.Context(), "line")
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Claims)
	}
	for what, enters := range map[string]func(c *engine.Claim){
		"waits": func(c *engine.Claim) { sessiontest.Wait(t, v.session, c) },
		"left before": func(c *engine.Claim) {
			sessiontest.Wait(t, v.session, c)
			does(t, raw, "ZREM", "pawl:{line}:q", v.record(c, v.id))
		},
		"answer lost": func(c *engine.Claim) {
			lost.Store(true)
			sessiontest.Refuse(t, v.session, c, true, engine.ErrUnavailable)
		},
		"leave is lost": func(c *engine.Claim) {
			sessiontest.Wait(t, v.session, c)
			lost.Store(true)
			v.Leave(t.Context(), c.Resource, c.ID)
		}, //nolint:errcheck // lost
	} {
		c := v.claim(all)
		c.ID += what
		c.Owner = c.ID
		enters(c)
		lost.Store(false)
		does(t, raw, "CONFIG", "RESETSTAT")
		if err := v.Leave(t.Context(), c.Resource, c.ID); err != nil && !errors.Is(err, engine.ErrGone) {
			t.Errorf("%s: %v", what, err)
		}
		if stats, _ := does(t, raw, "INFO", "commandstats").Value.(string); !strings.Contains(stats, "cmdstat_zrem:") || strings.Contains(stats, "cmdstat_zrange:") {
			t.Errorf("%s: the line was read: %s", what, stats)
		}
		if n := ids(); n != 2 {
			t.Errorf("%s: %d claims, want 2", what, n)
		}
	}
}

// scanning counts the pages that a client reads.
type scanning struct {
	Client
	pages *atomic.Int64
}

func (s scanning) Do(ctx context.Context, c Command) Reply {
	if c.Head[0] == "SCAN" {
		s.pages.Add(1)
	}
	return s.Client.Do(ctx, c)
}

// TestListTellsEachPage: a Redis may have millions of keys that are no locks. Each page of the search says that the server
// answers, and a caller who has enough reads no further page.
func TestListTellsEachPage(t *testing.T) {
	server := testservers.Redis(t)
	raw := onServer(t, server, 0)
	isNew(t, raw)
	visit(t, raw, time.Minute, "held").holds(all)
	others := []string{"MSET"}
	for i := range 5000 {
		others = append(others, "other:"+strconv.Itoa(i), "x")
	}
	does(t, raw, others...)
	var pages atomic.Int64
	e := NewOn(scanning{onRueidis{dialOne(t, server.Addr)}, &pages}, nil)
	told, found := int64(0), 0
	for name, err := range e.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if told++; told != pages.Load() {
			t.Errorf("%d pages are read, and %d names are told", pages.Load(), told)
		}
		if name != "" {
			found++
		}
	}
	if found != 1 || told < 5 {
		t.Errorf("%d names, %d of them empty", told, told-int64(found))
	}
	pages.Store(0)
	for range e.List(t.Context(), "") {
		break
	}
	if n := pages.Load(); n != 1 {
		t.Errorf("%d pages are read for one name", n)
	}
}
