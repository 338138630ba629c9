package inbox

import (
	"container/list"
	"time"
)

// line is the messages of a lane that were given back, in their order. A lane may have very many of them.
type line struct {
	order list.List // of *back
	byID  map[string]*back
}

// back is a message that was given back.
type back struct {
	id     string
	times  int
	until  time.Time // by plan.heard; the lane does not wait for it any longer
	trials           // of the first message only
}

// first returns the first message, or nil.
func (l *line) first() *back {
	if e := l.order.Front(); e != nil {
		return e.Value.(*back)
	}
	return nil
}

// find returns the message with an ID, which is put at the end if the line does not have it.
func (l *line) find(id string) *back {
	b := l.byID[id]
	if b == nil {
		b = &back{id: id}
		l.byID[id] = b
		l.order.PushBack(b)
	}
	return b
}

// push puts a message before all others.
func (l *line) push(b *back) {
	l.byID[b.id] = b
	l.order.PushFront(b)
}

// line returns the line of a lane, which is made if it is missing.
func (p *plan) line(lane string) *line {
	l := p.returned[lane]
	if l == nil {
		l = &line{byID: make(map[string]*back)}
		p.returned[lane] = l
	}
	return l
}

// pop removes the first message of the line of a lane.
func (p *plan) pop(lane string) {
	l := p.returned[lane]
	delete(l.byID, l.order.Remove(l.order.Front()).(*back).id)
	if l.order.Len() == 0 {
		delete(p.returned, lane)
	}
}

// expire forgets the first messages that were given back and did not come again: other processes have them. Expire returns the first
// of the others, or nil.
func (p *plan) expire(lane string, now time.Time) *back {
	for l := p.returned[lane]; l != nil; l = p.returned[lane] {
		if first := l.first(); p.heard(now).Before(first.until) {
			return first
		}
		p.pop(lane)
	}
	return nil
}
