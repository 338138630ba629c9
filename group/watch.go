package group

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
)

// View is the members of a group as a watcher sees them.
type View struct {
	Members []Member // in the order of their IDs

	// Stale says that the members may be those of an earlier time. The store does not answer, can only be read, or lost
	// the group or its last changes a short time ago. A list without members is stale while the store grants no locks.
	Stale bool
}

func (v View) equal(o View) bool {
	return v.Stale == o.Stale && slices.EqualFunc(v.Members, o.Members, Member.equal)
}

// Watch yields the members, and then all members again after each change. Of changes that follow one another
// quickly Watch may yield only the last. Watch ends when ctx does. Watch yields an error only if no more
// changes can come.
//
// While the store is away Watch goes on with the last members, and yields them as [View].Stale. A store that can be read,
// and does not answer the heartbeat of the client, is away too. Nobody can take a dead member off its list. When the
// store comes back and has lost the group, or has an older copy of it, members join again one by one. So for one TTL after the
// store grants locks again Watch keeps the members that were known before.
func (g *Group) Watch(ctx context.Context) iter.Seq2[View, error] {
	return func(yield func(View, error) bool) {
		if g.err != nil {
			yield(View{}, g.failed("watch", g.err))
			return
		}
		g.use()
		defer g.unuse()
		w := &watch{list: newList(g)}
		var last *View
		for ctx.Err() == nil {
			is, err := w.look(ctx)
			if err != nil && ctx.Err() == nil {
				yield(View{}, g.failed("watch", err))
			}
			if err != nil {
				return
			}
			if w.read && (last == nil || !is.equal(*last)) {
				if last = &is; !yield(View{slices.Clone(is.Members), is.Stale}, nil) {
					return
				}
			}
			if err := w.wait(ctx); err != nil && ctx.Err() == nil {
				yield(View{}, g.failed("watch", err))
				return
			}
		}
	}
}

// watch is one watcher.
type watch struct {
	*list
	memory
	read  bool // once at least
	stale bool // the store did not answer
	ttl   time.Duration
}

// look reads the members. While the store is away nobody can join again, so members that are kept are kept for a TTL from then.
func (w *watch) look(ctx context.Context) (View, error) {
	keeps := w.keeps(time.Now())
	lost, err := w.list.read(ctx, false)
	if w.stale = errors.Is(err, pawl.ErrUnavailable); w.stale {
		if keeps {
			w.until = time.Now().Add(w.ttl)
		}
		return View{w.known, true}, nil
	}
	if err != nil {
		return View{}, err
	}
	w.read = true
	w.ttl = max(w.ttl, w.group.client.TTL(), w.longest()) // after a loss the list tells the TTL of no member
	listed, open := w.members(func(entry) bool { return true }), w.group.client.Err() == nil
	if open && (lost || keeps || len(listed) == 0) {
		r, err := w.group.probe(ctx)
		open = err == nil && !r.Grace.On()
	}
	members, stale := w.learn(listed, lost || keeps && !open, time.Now(), w.ttl)
	return View{members, stale || !open}, nil
}

// wait waits until the head has changed, and at most a sixth of the TTL, or a second where that is less.
func (w *watch) wait(ctx context.Context) error {
	bound, stop := context.WithTimeout(ctx, min(w.group.client.TTL()/6, time.Second))
	defer stop()
	_, err := w.group.head.Next(bound, w.number)
	if w.stale { // Next may return at once
		<-bound.Done()
	}
	if bound.Err() != nil {
		return nil
	}
	return err
}
