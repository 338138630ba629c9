package work_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/work"
)

// stored is what the Pool of package pawl wrote, before there was this package. There were three
// pages and a dead letter. Of the first page item a was buried, item b was given back, and the
// worker of item c died.
var stored = map[string]string{
	"pawl:pool/mails":         "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x04\x00\x01\x02",
	"pawl:pool-page/mails/1":  "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x03\x01\x01\x01\x00\x03\x01b\x02\x01\x14\x00\x01c",
	"pawl:pool-page/mails/2":  "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x02\x05\x00\x00\x00\x00\x06item 0\x01\x00\x00\x00\x06item 1",
	"pawl:dead/mails":         "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\r\x00\f\x01",
	"pawl:dead-page/mails/12": "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x01\f\x00\x00\x00\x00\x04\x01\x00\x01a",
}

// TestStored: what an earlier version stored is read, and goes on in the same places.
func TestStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		for key, data := range stored {
			_, err := eng.Put(t.Context(), key, []byte(data), 0)
			noErr(t, err)
		}
		c := newClient(t, eng)
		for range 20 { // tokens, which go on growing
			noErr(t, c.Mutex("m").Do(t.Context(), func(context.Context) error { return nil }))
		}
		q := work.New(c, "mails", nil)
		wantLen(t, q, 4)
		all := letters(t, q)
		if len(all) != 1 || string(all[0].Data) != "a" || all[0].Attempts != 1 || all[0].Name != "pawl:pool/mails/1.0" {
			t.Errorf("dead letters: %+v", all)
		}
		noErr(t, q.Put(t.Context(), []byte("new")))
		for _, want := range []struct {
			data     string
			attempts int
			name     string
		}{{"item 0", 1, "2.0"}, {"item 1", 1, "2.1"}, {"new", 1, "2.2"}, {"b", 2, "1.1"}, {"c", 2, "1.2"}} {
			item := mustClaim(t, q)
			is := fmt.Sprintf("attempt %d of %q as %q", item.Attempts, item.Data, item.Name())
			if want := fmt.Sprintf("attempt %d of %q as %q", want.attempts, want.data, "pawl:pool/mails/"+want.name); is != want {
				t.Errorf("%s, want %s", is, want)
			}
			noErr(t, item.Done(t.Context()))
		}
		noErr(t, q.DeadLetters().Retry(t.Context(), all[0].ID))
		noErr(t, mustClaim(t, q).Done(t.Context()))
		wantLen(t, q, 0)
	})
}

// TestItem: a claim that has ended cannot be ended by another way, and gives nothing back.
func TestItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		q := work.New(newClient(t, eng), "q", nil)
		noErr(t, q.Put(t.Context(), tasks(0, 1)...))
		item := mustClaim(t, q)
		if left := time.Until(item.ValidUntil()); left <= 0 || item.Err() != nil {
			t.Errorf("valid for %v, %v", left, item.Err())
		}
		within, cancel := item.Within(t.Context())
		defer cancel()
		noErr(t, item.Return(t.Context()))
		synctest.Wait()
		for _, ctx := range []interface{ Err() error }{item.Context(), within, item} {
			if ctx.Err() == nil {
				t.Errorf("%T goes on after the claim", ctx)
			}
		}
		wantErr(t, item.Done(t.Context()), pawl.ErrClosed)
		wantErr(t, item.Bury(t.Context()), pawl.ErrClosed)
		wantErr(t, item.ReturnAfter(t.Context(), time.Minute), pawl.ErrClosed)
		noErr(t, item.Return(t.Context()))
		wantLen(t, q, 1)
	})
}

// TestReentry: work re-enters what its worker holds, and nobody re-enters a claim.
func TestReentry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng)
		q := work.New(c, "q", nil)
		noErr(t, q.Put(t.Context(), tasks(0, 2)...))
		lease, err := c.Mutex("outer").Lock(pawl.WithOwner(t.Context(), "web-1"))
		noErr(t, err)
		first, err := q.Claim(lease.Context())
		noErr(t, err)
		second, err := q.TryClaim(first.Context())
		noErr(t, err)
		if first.Name() == second.Name() {
			t.Errorf("%q twice", first.Name())
		}
		_, err = q.TryClaim(second.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		again, err := c.Mutex("outer").TryLock(first.Context())
		noErr(t, err)
		noErr(t, again.Unlock(t.Context()))
		noErr(t, lease.Unlock(t.Context()))
	})
}

// valueless is a store without versioned values.
type valueless struct{ engine.Engine }

func (s *valueless) Caps() engine.Caps {
	caps := s.Engine.Caps()
	caps.Lacks = map[engine.Feature]string{engine.FeatureValues: "a test"}
	return caps
}

// TestUnsupported: a store without values is not asked.
func TestUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, &valueless{memengine.New()})
		q := work.New(c, "q", nil)
		_, err := q.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrUnsupported)
		_, err = q.Claim(t.Context())
		wantErr(t, err, pawl.ErrUnsupported)
		_, err = q.Len(t.Context())
		wantErr(t, err, pawl.ErrUnsupported)
		wantErr(t, q.Put(t.Context(), []byte("x")), pawl.ErrUnsupported)
		wantErr(t, q.DeadLetters().Drop(t.Context(), "1.1"), pawl.ErrUnsupported)
		for _, verb := range []string{"enter", "get", "put"} {
			if n := len(store.Called(verb)); n > 0 {
				t.Errorf("%s was asked %d times", verb, n)
			}
		}
	})
}
