package group

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
)

// restorable returns a store that can come back with an older copy, and groups of one name with a client each.
func restorable(t *testing.T) (eng *faulty.Restored, groups [3]*Group) {
	t.Helper()
	eng = faulty.NewRestored(memengine.New())
	for i := range groups {
		client, err := pawl.New(t.Context(), eng, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // the test is over
		groups[i] = New(client, "g")
	}
	return eng, groups
}

// save has a Redis server write its snapshot.
func save(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the answer counts
	fmt.Fprint(conn, "SAVE\r\n")
	if reply, err := bufio.NewReader(conn).ReadString('\n'); err != nil || reply != "+OK\r\n" {
		t.Fatal(reply, err)
	}
}

// TestOlderCopy: the store comes back with a copy from before some joins, and with the same life of the group. A watcher keeps all members that
// it knew, whatever others write before it looks. A member that writes itself again is older than the next join of its ID.
func TestOlderCopy(t *testing.T) {
	for name, writes := range map[string]func(*Membership) error{
		"nobody writes":              func(*Membership) error { return nil },
		"a member writes itself":     func(m *Membership) error { return m.look(t.Context(), m.lease) },
		"a member loses its session": func(m *Membership) error { return m.enter(t.Context(), m.Member().Token) },
	} {
		t.Run(name, func(t *testing.T) { comesBack(t, writes) })
	}
}

func comesBack(t *testing.T, writes func(*Membership) error) {
	t.Parallel()
	eng, g := restorable(t)
	old := join(t, g[0], Member{ID: "a", Addr: "old:1"})
	join(t, g[0], Member{ID: "b"})
	eng.Copy()
	a := join(t, g[1], Member{ID: "a", Addr: "new:1"})
	<-old.Ended() // else it may join again when the older copy is back
	c := join(t, g[1], Member{ID: "c"})
	w := &watch{list: newList(g[2])}
	look := func(stale bool) {
		t.Helper()
		v, err := w.look(t.Context())
		if err != nil || ids(v.Members) != "abc" || v.Stale != stale || v.Members[0].Addr != "new:1" {
			t.Errorf("%v, %v", v, err)
		}
	}
	look(false)
	eng.Restore()
	if err := writes(c); err != nil {
		t.Fatal(err)
	}
	look(true)
	if err := a.look(t.Context(), a.lease); err != nil {
		t.Fatal(err)
	}
	for _, was := range []*Membership{a, c} {
		if is := join(t, g[2], Member{ID: was.Member().ID}); is.Member().Token <= was.Member().Token {
			t.Errorf("the token of the next join is %d, after %d", is.Member().Token, was.Member().Token)
		}
	}
}

// TestOlderChange: the store comes back with a copy from before a change of a member. The member makes the change again. Text that is no UTF-8 is
// stored as JSON has it, and is not taken for a change.
func TestOlderChange(t *testing.T) {
	t.Parallel()
	eng, g := restorable(t)
	a := join(t, g[0], Member{ID: "a\xff", Addr: "<\xff>", Meta: map[string]string{"k\xff": "&\u2028\xff"}})
	eng.Copy()
	if err := a.Update(t.Context(), Member{Addr: "\xfe", Weight: 7}); err != nil {
		t.Fatal(err)
	}
	look := func(want string) {
		t.Helper()
		if err := a.look(t.Context(), a.lease); err != nil {
			t.Error(err)
		}
		list := newList(g[1])
		if _, err := list.read(t.Context(), true); err != nil {
			t.Error(err)
		}
		all := list.members(func(entry) bool { return true })
		if len(all) != 1 || all[0].Weight != 7 || all[0].Addr != "\uFFFD" {
			t.Errorf("%s: %v", want, all)
		}
	}
	look("before")
	page := func() uint64 {
		is, err := g[1].pages[pageOf(a.Member().ID)].Get(t.Context())
		if err != nil {
			t.Error(err)
		}
		return is.Number
	}
	was := page()
	look("the same")
	if page() != was {
		t.Error("it was written again")
	}
	eng.Restore()
	look("the older copy")
}

// TestOlderCopyIsAnOutage: a sweeper that had answers all the time, and finds an older copy, sweeps nobody for one TTL.
func TestOlderCopyIsAnOutage(t *testing.T) {
	t.Parallel()
	eng, g := restorable(t)
	write := func(members ...entry) {
		if err := g[0].changePage(t.Context(), pageOf("a"), func(p *pageValue) error { p.Members = members; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	s := &sweeper{Group: g[1]}
	if err := s.testify(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := &round{sweeper: s, list: newList(g[1])}
	sweep := func(quiet time.Duration) (left int) {
		t.Helper()
		since := time.Now().Add(-quiet)
		s.gap.Store(&since)
		if err := r.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		list := newList(g[0])
		if _, err := list.read(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		return len(list.entries[pageOf("a")])
	}
	write(entry{Member: Member{ID: "a", Weight: 1}, Lock: "a"})
	eng.Copy()
	write()
	if sweep(time.Hour) != 0 {
		t.Error("somebody is there")
	}
	eng.Restore()
	if sweep(time.Hour) != 1 {
		t.Error("swept at once")
	}
	if sweep(time.Hour) != 0 {
		t.Error("not swept")
	}
}
