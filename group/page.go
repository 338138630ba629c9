package group

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
)

// The members stand in a fixed number of pages, each a versioned value in JSON. The ID of a member
// says in which page. The head, another value, has the version of each page. So a watch of the head is
// a watch of the group, and only pages that changed are read. A writer writes its page and then the head.
// If that writer dies in between, a sweeper brings the head up to date.
//
// The names in the store begin with "pawl:group/", "pawl:group-page/", "pawl:group-member/" and
// "pawl:group-sweep/".

// pages is how many pages a group has. All versions of pawl have to agree on pages, so it is part of the format.
const pages = 16

const format = 1

// pageBytes is how large a page may be, below the largest value.
const pageBytes = pawl.MaxValue - 1<<10

// headValue is the content of the head.
type headValue struct {
	Format int           `json:"format"`
	Life   string        `json:"life"` // made with the head; another life: the store has lost the first
	Next   uint64        `json:"next"` // the least token of the next join
	Pages  [pages]uint64 `json:"pages"`
}

// entry is a member in its page.
type entry struct {
	Member
	Lock  string `json:"lock"`  // which the member holds
	Grant uint64 `json:"grant"` // the token of that lock
	TTLms int64  `json:"ttl"`   // of the session of the member, in milliseconds
}

func (e entry) ttl() time.Duration { return time.Duration(e.TTLms) * time.Millisecond }

type pageValue struct {
	Format  int     `json:"format"`
	Members []entry `json:"members"`
}

func parse(v pawl.Snapshot, into any, is *int) error {
	if v.Number == 0 || len(v.Data) == 0 {
		*is = format
		return nil
	}
	if err := json.Unmarshal(v.Data, into); err != nil {
		return fmt.Errorf("%w: the value in the store is no group", pawl.ErrMismatch)
	}
	if *is != format {
		return fmt.Errorf("%w: the group has format %d and this build of pawl knows format %d", pawl.ErrUnsupported, *is, format)
	}
	return nil
}

func parseHead(v pawl.Snapshot) (h headValue, err error) {
	err = parse(v, &h, &h.Format)
	return h, err
}

func parsePage(v pawl.Snapshot) (p pageValue, err error) {
	err = parse(v, &p, &p.Format)
	return p, err
}

func pageOf(id string) int {
	h := fnv.New32a()
	h.Write([]byte(id)) //nolint:errcheck // a hash takes all
	return int(h.Sum32() % pages)
}

// changeHead changes the head, unless change reports that there is nothing to change.
func (g *Group) changeHead(ctx context.Context, change func(*headValue) bool) error {
	_, err := g.head.Update(ctx, func(v pawl.Snapshot) ([]byte, error) {
		h, err := parseHead(v)
		if err != nil {
			return nil, err
		}
		if h.Life == "" {
			h.Life, h.Next = rand.Text(), leastToken()
		}
		if !change(&h) {
			return nil, pawl.ErrUnchanged
		}
		return json.Marshal(h)
	})
	return err
}

// leastToken is by the clock, because the store may have lost the head, or have an older copy of it.
func leastToken() uint64 { return uint64(max(time.Now().UnixMicro(), 1)) }

// ticket returns the token of a join.
func (g *Group) ticket(ctx context.Context) (token uint64, err error) {
	err = g.changeHead(ctx, func(h *headValue) bool {
		token = max(h.Next, leastToken())
		h.Next = token + 1
		return true
	})
	return token, err
}

// publish tells the watchers that a page has this version.
func (g *Group) publish(ctx context.Context, page int, version uint64) error {
	return g.changeHead(ctx, func(h *headValue) bool {
		older := h.Pages[page] < version
		h.Pages[page] = max(h.Pages[page], version)
		return older
	})
}

// changePage changes a page, unless change returns an error, and publishes it.
func (g *Group) changePage(ctx context.Context, page int, change func(*pageValue) error) error {
	is, err := g.pages[page].Update(ctx, func(v pawl.Snapshot) ([]byte, error) {
		p, err := parsePage(v)
		if err == nil {
			err = change(&p)
		}
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(p)
		if err == nil && len(data) > pageBytes && len(data) > len(v.Data) {
			err = ErrFull
		}
		return data, err
	})
	if err != nil {
		return err
	}
	return g.publish(ctx, page, is.Number) // also when nothing was changed, because the writer may have died before this
}

// longest returns the longest TTL of a member that is listed.
func (l *list) longest() (ttl time.Duration) {
	for _, page := range l.entries {
		for _, e := range page {
			ttl = max(ttl, e.ttl())
		}
	}
	return ttl
}

// list is the members of a group as they were read last.
type list struct {
	group   *Group
	lost    bool   // the store has lost an earlier state, or came back with an older copy, and no read has reported so yet
	number  uint64 // the version of the head
	life    string
	next    uint64
	version [pages]uint64
	entries [pages][]entry
}

func newList(g *Group) *list { return &list{group: g} }

// read reads the head, and the pages that have changed, or all pages. read reports whether the store has lost the state that an
// earlier read saw, or has come back with an older copy. A read that fails leaves that report to the next read.
func (l *list) read(ctx context.Context, all bool) (lost bool, err error) {
	v, err := l.group.head.Get(ctx)
	if err != nil {
		return false, err
	}
	h, err := parseHead(v)
	if err != nil {
		return false, err
	}
	if l.life != "" && (h.Life != l.life || v.Number < l.number || h.Next < l.next) {
		*l = list{group: l.group, lost: true}
	}
	for i, version := range h.Pages {
		if !all && version == l.version[i] {
			continue
		}
		v, err := l.group.pages[i].Get(ctx)
		if err != nil {
			return false, err
		}
		if v.Number < l.version[i] {
			*l = list{group: l.group, lost: true}
			return l.read(ctx, all)
		}
		p, err := parsePage(v)
		if err != nil {
			return false, err
		}
		l.version[i], l.entries[i] = v.Number, p.Members
		if v.Number > version && all {
			if err := l.group.publish(ctx, i, v.Number); err != nil {
				return false, err
			}
		}
	}
	lost, l.lost = l.lost, false
	l.number, l.life, l.next = v.Number, h.Life, h.Next
	return lost, nil
}

// members returns the members whose entries are wanted.
func (l *list) members(wanted func(entry) bool) (all []Member) {
	for _, page := range l.entries {
		for _, e := range page {
			if wanted(e) {
				all = append(all, e.Member)
			}
		}
	}
	return newest(all)
}

// without removes entries from a page.
func (g *Group) without(ctx context.Context, page int, gone func(entry) bool) error {
	return g.changePage(ctx, page, func(p *pageValue) error {
		before := len(p.Members)
		p.Members = slices.DeleteFunc(p.Members, gone)
		if len(p.Members) == before {
			return pawl.ErrUnchanged
		}
		return nil
	})
}
