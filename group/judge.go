package group

import (
	"cmp"
	"slices"
	"time"
)

// This file says what the pages of a group and the locks of its members mean. The functions ask no store and no
// clock, so a test takes them through every series of events.

// newest returns the members in the order of their IDs. Of each address the newest is returned.
func newest(all []Member) []Member {
	at := make(map[string]uint64)
	for _, m := range all {
		at[m.Addr] = max(at[m.Addr], m.Token)
	}
	all = slices.DeleteFunc(all, func(m Member) bool { return m.Addr != "" && m.Token < at[m.Addr] })
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// place puts a member into the entries of a page, in place of an older member with its ID. place fails with
// ErrReplaced if a newer member than the token most has the ID. The tokens of tries are of earlier joins of the same member, whose answers
// were lost: these joins replace nobody. place returns the entry that was replaced, and whether
// the entries changed.
func place(all []entry, mine entry, most uint64, tries []uint64) (placed []entry, old entry, changed bool, err error) {
	i := slices.IndexFunc(all, func(e entry) bool { return e.ID == mine.ID })
	switch {
	case i < 0:
		return append(all, mine), entry{}, true, nil
	case all[i].Lock == mine.Lock && all[i].equal(mine.Member):
		return all, entry{}, false, nil
	case all[i].Lock == mine.Lock:
	case all[i].Token > min(most, mine.Token) && !slices.Contains(tries, all[i].Token):
		return all, entry{}, false, ErrReplaced
	default:
		old = all[i]
	}
	all[i] = mine
	return all, old, true, nil
}

// suspects returns the locks of the members that are dead unless their locks are held. quiet is how long the store has answered the
// sweeper without a gap. After a gap a member has one TTL, its own or the sweeper's, to join again.
func suspects(all []entry, quiet, ttl time.Duration) (locks []string) {
	for _, e := range all {
		if quiet >= max(ttl, e.ttl()) {
			locks = append(locks, e.Lock)
		}
	}
	return locks
}

// dead returns the suspects that are to be swept. held has the locks with a holder, and was read after the
// entries: each member takes its lock before it stands in a page.
func dead(all []entry, held map[string]time.Time, quiet, ttl time.Duration) (locks []string) {
	return slices.DeleteFunc(suspects(all, quiet, ttl), func(lock string) bool { _, is := held[lock]; return is })
}

// rest is how long a sweeper pauses after a round that took so long. Sweepers of a large group leave the store time for others. But a
// slow store must not keep dead members in the list for many seconds.
func rest(took time.Duration) time.Duration {
	return min(max(sweepEvery, 5*took), time.Second/2)
}

// memory is what a watcher remembers of the members.
type memory struct {
	known []Member
	until time.Time // members that are not listed are kept until then
}

// learn returns the members of a watcher that has read the list now. stale: some of them may be those of an
// earlier time. lost: the store has lost an earlier list, or has an older copy of it, and members could not join again until now. ttl is
// how long the members then have to do so.
func (m *memory) learn(listed []Member, lost bool, now time.Time, ttl time.Duration) (members []Member, stale bool) {
	if lost {
		m.until = now.Add(ttl)
	}
	if m.keeps(now) {
		stale = true
		for _, old := range m.known {
			i := slices.IndexFunc(listed, func(o Member) bool { return o.ID == old.ID })
			if i < 0 {
				listed = append(listed, old)
			} else if listed[i].Token < old.Token { // it is of an older copy
				listed[i] = old
			}
		}
	}
	m.known = newest(listed)
	return m.known, stale
}

// keeps reports whether members that are not listed are kept.
func (m *memory) keeps(now time.Time) bool { return now.Before(m.until) }
