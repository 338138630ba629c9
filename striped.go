package pawl

import (
	"context"
	"hash/fnv"
	"slices"
	"strconv"
)

// MaxStripes is the largest number of stripes of a [Striped] lock.
const MaxStripes = 1 << 16

// Striped is a fixed number of locks for any number of keys. Keys of one stripe exclude one another
// although they need not. Striped bounds the cost of many keys. Striped is a description, as [Mutex] is.
type Striped struct {
	client  *Client
	name    string
	stripes int
	err     error
}

// Striped returns the striped lock of this name with so many stripes, 1 to [MaxStripes]. All users
// must agree on the number, and pawl cannot check that: with another number a key belongs to
// another lock. The stripes are the locks NAME/0, NAME/1 and so on, so the name must be a little
// shorter than [MaxName]. The stripe of a key is its 64-bit FNV-1a hash modulo the number of
// stripes.
func (c *Client) Striped(name string, stripes int) *Striped {
	s := &Striped{client: c, name: name, stripes: stripes, err: checkText("name", name)}
	if s.err == nil && (stripes < 1 || stripes > MaxStripes) {
		s.err = invalid("stripes is %d: 1 to %d are allowed", stripes, MaxStripes)
	}
	if longest := MaxName - len("/") - len(strconv.Itoa(stripes-1)); s.err == nil && len(name) > longest {
		s.err = invalid("name has %d bytes: 1 to %d are allowed with %d stripes", len(name), longest, stripes)
	}
	if s.err != nil {
		s.stripes = 1
	}
	return s
}

// For returns the lock of a key. Any string is a key. Two keys of one stripe have the same lock: a
// context that holds one of them re-enters the other.
func (s *Striped) For(key string) *Mutex { return s.stripe(s.index(key)) }

func (s *Striped) index(key string) int {
	h := fnv.New64a()
	h.Write([]byte(key))
	return int(h.Sum64() % uint64(s.stripes)) //nolint:gosec // smaller than stripes
}

func (s *Striped) stripe(i int) *Mutex {
	m := s.client.Mutex(s.name + "/" + strconv.Itoa(i))
	if s.err != nil {
		m.err = s.err
	}
	return m
}

// LockAll takes the locks of all keys or none, each stripe once. The order of the stripes is the
// same for all callers, so that callers with some of the same keys do not deadlock. LockAll is
// [LockAll] otherwise.
func (s *Striped) LockAll(ctx context.Context, keys ...string) (Leases, error) {
	var wanted []int
	for _, key := range keys {
		wanted = append(wanted, s.index(key))
	}
	slices.Sort(wanted)
	var locks []Locker
	for _, i := range slices.Compact(wanted) {
		locks = append(locks, s.stripe(i))
	}
	return LockAll(ctx, locks...)
}
