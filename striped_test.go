package pawl_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

func TestStriped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		s, same := newClient(t, eng, nil).Striped("s", 4), newClient(t, eng, nil).Striped("s", 4)
		names := make(map[string]bool)
		for i := range 100 {
			key := fmt.Sprint("key ", i)
			if s.For(key).Name() != same.For(key).Name() {
				t.Fatalf("%q has two locks", key)
			}
			names[s.For(key).Name()] = true
		}
		if len(names) != 4 || !names["s/0"] || !names["s/3"] {
			t.Errorf("stripes %v", names)
		}
		lease := mustLock(t, t.Context(), s.For("key 1"))
		_, err := same.For("key 1").TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		mustUnlock(t, lease)
		for _, bad := range []int{0, -1, pawl.MaxStripes + 1} {
			_, err := newClient(t, eng, nil).Striped("s", bad).For("key").TryLock(t.Context())
			wantErr(t, err, pawl.ErrInvalid)
		}
		_, err = newClient(t, eng, nil).Striped("", 3).For("key").TryLock(t.Context())
		wantErr(t, err, pawl.ErrInvalid)
	})
}

// TestStripedLockAll: callers that want some of the same keys, in any order, do not deadlock. Two
// keys of one stripe are one lock.
func TestStripedLockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		var all sync.WaitGroup
		inside := make([]int, 6)
		for i := range 6 {
			s := newClient(t, eng, nil).Striped("s", 3)
			all.Go(func() {
				for j := range 20 {
					a, b := (i+j)%6, (5*i+3*j)%6
					leases, err := s.LockAll(t.Context(), fmt.Sprint(a), fmt.Sprint(b))
					if err != nil {
						t.Error(err)
						return
					}
					inside[a]++
					if a != b {
						inside[b]++
					}
					for _, k := range []int{a, b} {
						if inside[k] != 1 {
							t.Errorf("%d hold key %d", inside[k], k)
						}
					}
					inside[a] = 0
					inside[b] = 0
					noErr(t, leases.Unlock(t.Context()))
				}
			})
		}
		all.Wait()
	})
}

// TestStripedLongName: a name that is too long for some of the stripes is refused for all keys. Not
// only the keys of those stripes fail.
func TestStripedLongName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		for stripes, longest := range map[int]int{1: 510, 10: 510, 11: 509, 65536: 506} {
			for n, want := range map[int]error{longest: nil, longest + 1: pawl.ErrInvalid} {
				s := c.Striped(strings.Repeat("n", n), stripes)
				for key := range 50 {
					lease, err := s.For(fmt.Sprint(key)).Lock(t.Context())
					if !errors.Is(err, want) {
						t.Fatalf("%d bytes, %d stripes: %v", n, stripes, err)
					}
					noErr(t, lease.Unlock(t.Context()))
				}
			}
		}
	})
}
