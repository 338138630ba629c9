package redisstock

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// between is a client with which something happens before a request.
type between struct {
	rueidis.Client
	before func(words []string)
}

func (b between) Do(ctx context.Context, c rueidis.Completed) rueidis.RedisResult {
	b.before(c.Commands())
	return b.Client.Do(ctx, c)
}

// TestMovingIsNotSoldOut: a client was frozen in a move, and its loan leaves the part of an id between the sweep and the
// reservation. The units come back to that part, so they are not sold out.
func TestMovingIsNotSoldOut(t *testing.T) {
	client, late := dialOne(t), []func(){}
	reserves := 0
	s, err := New(between{client, func(words []string) {
		if words[0] != "EVALSHA" || words[1] != sum(partLua+reserveLua) {
			return
		}
		if reserves++; reserves == 2 { // the first was before the sweep
			late[0]()
			late[1]()
		}
	}}, t.Name(), &Options{Parts: 2})
	if err == nil {
		err = s.Put(t.Context(), "first", 20)
	}
	if err != nil {
		t.Fatal(err)
	}
	frozen, err := New(client, t.Name(), &Options{Parts: 2})
	if err != nil {
		t.Fatal(err)
	}
	late = frozen.steps(t, "late", 7)
	id := "a"
	for s.home(id) != 0 {
		id += "a"
	}
	if err := s.Reserve(t.Context(), id, 20); err != nil || reserves != 3 {
		t.Errorf("after %d scripts: %v", reserves, err)
	}
	late[2]()
	late[3]()
	if n := s.sums(t); n != 20 {
		t.Errorf("%d units", n)
	}
}

// TestEndOfCtx: a Redis that hangs in a sweep does not hold a caller up after its ctx.
func TestEndOfCtx(t *testing.T) {
	for what, hangs := range map[string]func(words []string) bool{
		"locked": func(words []string) bool { return words[0] == "SET" && slices.Contains(words, "open") },
		"lent":   func(words []string) bool { return words[0] == "EVALSHA" && words[1] == sum(partLua+depositLua) },
	} {
		t.Run(what, func(t *testing.T) {
			link := proxy.New(t, testservers.SharedRedis(t).Addr)
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{link.Addr}, DisableCache: true})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s, err := New(between{c, func(words []string) {
				if hangs(words) {
					link.FreezeReplies()
				}
			}}, t.Name(), &Options{Parts: 2})
			if err == nil {
				err = s.Put(t.Context(), "first", 20)
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			timer := time.NewTimer(600 * time.Millisecond) // a busy machine is late for both
			err = s.Reserve(ctx, "a", 20)
			returned := time.Now()
			if late := returned.Sub(<-timer.C); !errors.Is(err, pawl.ErrUnavailable) || late > 100*time.Millisecond {
				t.Errorf("the call returned %v after the timer: %v", late, err)
			}
			link.Thaw()
		})
	}
}

func sum(script string) string {
	is := sha1.Sum([]byte(script))
	return hex.EncodeToString(is[:])
}
