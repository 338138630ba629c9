package redisengine

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// expires returns in how long each key of a name goes: 0 when there is none,
// and less when it never does.
func expires(t rapid.TB, e *Engine, name string) (left [3]time.Duration) {
	t.Helper()
	script := `return {redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]), redis.call('PTTL', KEYS[3])}`
	all, err := e.client.Do(context.Background(), eval(script, e.keys(name, "")[:3])).list()
	if err != nil {
		t.Fatal(err)
	}
	for i, ms := range all {
		if ms := ms.(int64); ms != -2 {
			left[i] = time.Duration(ms) * time.Millisecond
		}
	}
	return left
}

// visitor is a session with its own TTL that asks for one name.
type visitor struct {
	*session
	t    testing.TB
	name string
}

func visit(t testing.TB, e *Engine, ttl time.Duration, name string) visitor {
	t.Helper()
	return visitor{sessiontest.Open(t, e, ttl).(*session), t, name}
}

// claim is the one of this session.
func (v visitor) claim(weight int64) *engine.Claim {
	id := v.id + ".claim"
	return &engine.Claim{Spec: specs[0], Resource: v.name, ID: id, Owner: id, Weight: weight}
}

func (v visitor) holds(weight int64) { v.t.Helper(); sessiontest.Hold(v.t, v.session, v.claim(weight)) }
func (v visitor) waits(weight int64) { v.t.Helper(); sessiontest.Wait(v.t, v.session, v.claim(weight)) }
func (v visitor) leaves()            { v.t.Helper(); sessiontest.Leave(v.t, v.session, v.claim(all)) }

// dies ends the session as its TTL would.
func (v visitor) dies() {
	v.t.Helper()
	for _, r := range v.engine.client.Pipeline(v.t.Context(), v.farewell()) {
		if r.Err != nil {
			v.t.Fatal(r.Err)
		}
	}
}

const all, some = engine.LockCapacity, 1

// TestKeysLastAsLongAsTheirClaims: whichever client does something on a name, its keys stay until
// its holders and its waiters have renewed their sessions.
func TestKeysLastAsLongAsTheirClaims(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	const long, short = 24 * time.Hour, 15 * time.Second
	for name, steps := range map[string]func(long, short, other visitor){
		"a reader beside it":      func(long, short, _ visitor) { long.holds(some); short.holds(some) },
		"a reader beside, leaves": func(long, short, _ visitor) { long.holds(some); short.holds(some); short.leaves() },
		"one behind it":           func(long, short, _ visitor) { long.holds(all); short.waits(all) },
		"one before it":           func(long, short, _ visitor) { short.holds(all); long.waits(all); short.leaves() },
		"and one behind":          func(long, short, other visitor) { short.holds(all); other.waits(all); long.waits(all); short.leaves() },
		"a reader behind it":      func(long, short, _ visitor) { long.holds(all); short.waits(some) },
	} {
		t.Run(name, func(t *testing.T) {
			l := visit(t, e, long, "lasts "+name)
			steps(l, visit(t, e, short, l.name), visit(t, e, short, l.name))
			for i, left := range expires(t, e, l.name) {
				if left != 0 && left < long {
					t.Errorf("key %d goes in %v", i, left)
				}
			}
		})
	}
}

// TestKeysOfCrashedGo: all keys of a name expire, also of one whose queue was
// empty and filled again, or whose holders were found dead.
func TestKeysOfCrashedGo(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	for name, steps := range map[string]func(a, b, c visitor){
		"waits where one did":  func(a, b, c visitor) { a.holds(all); b.waits(all); b.leaves(); c.waits(all) },
		"after a hand-over":    func(a, b, c visitor) { a.holds(all); b.waits(all); a.leaves(); c.waits(all) },
		"in place of the dead": func(a, b, _ visitor) { a.holds(all); a.dies(); b.holds(all) },
		"dead readers":         func(a, b, c visitor) { a.holds(some); b.holds(some); a.dies(); b.dies(); c.holds(all) },
	} {
		t.Run(name, func(t *testing.T) {
			a := visit(t, e, time.Minute, "crashed "+name)
			steps(a, visit(t, e, time.Minute, a.name), visit(t, e, time.Minute, a.name))
			for i, left := range expires(t, e, a.name) {
				if left < 0 {
					t.Errorf("key %d never goes", i)
				}
			}
		})
	}
}

// TestEarlierLifeOfName: claims of crashed clients do not count when the name is used again. Else
// they would count beside the next holder's.
func TestEarlierLifeOfName(t *testing.T) {
	e := New(dial(t, testservers.SharedRedis(t).Addr), nil)
	awaitGrace(t, e)
	name := "earlier life"
	a, b := visit(t, e, time.Minute, name), visit(t, e, time.Minute, name)
	a.holds(some)
	b.holds(some)
	visit(t, e, time.Minute, name).waits(all)
	a.dies()
	b.dies()
	if err := e.client.Do(t.Context(), command("DEL", e.keys(name, "")[0])).Err; err != nil { // an operator
		t.Fatal(err)
	}
	visit(t, e, time.Minute, name).holds(all)
	reader := visit(t, e, time.Minute, name)
	sessiontest.Refuse(t, reader.session, reader.claim(some), false, engine.ErrBusy)

	// Ids that are left of a queue of all kinds are no records of a plain one.
	again := visit(t, e, time.Minute, name+" again")
	if err := e.client.Do(t.Context(), command("ZADD", e.keys(again.name, "")[2], "1", "an id")).Err; err != nil {
		t.Fatal(err)
	}
	again.holds(all)
	next := visit(t, e, time.Minute, again.name)
	next.waits(all)
	again.leaves()
	next.holds(all) // asked again
}
