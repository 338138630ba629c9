package outbox

import (
	"testing"
	"time"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	const long = time.Hour
	for what, c := range map[string]struct {
		is    health
		fails bool
	}{
		"nothing was sent":  {health{0, 0, 0, long}, false},
		"the first failure": {health{1, 0, 1, long}, true},
		"a late confirm of what was sent before the failure":  {health{2, 1, 1, long}, true},
		"that message is not this relay's any more":           {health{2, 1, 0, long}, true},
		"one queue is full, and others confirm meanwhile":     {health{7, 7, 1, long}, true},
		"all that failed is confirmed":                        {health{7, 7, 0, long}, false},
		"the same, and a message died or a repeat failed now": {health{7, 7, 0, 0}, true},
		"that was a minute ago":                               {health{7, 7, 0, time.Minute}, false},
		"and nothing was confirmed since":                     {health{7, 6, 0, time.Minute}, true},
	} {
		if is := c.is.fails(); is != c.fails {
			t.Errorf("%s: %v", what, is)
		}
	}
}

// A message that failed, and left the memory, counts until its lane is read again and confirmed, or is gone.
func TestFailingMessagesThatRest(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := newPlan(1, 1<<20, false, 0)
	entries := []Entry{{Message: Message{Key: "a"}, seq: 1}, {Message: Message{Key: "b"}, seq: 2}, {Message: Message{Key: "c"}, seq: 3}, {Message: Message{Key: "d"}, seq: 4}}
	p.add(entries)
	wants := func(when string, n int) {
		t.Helper()
		if is := p.failing(); is != n {
			t.Errorf("%s: %d messages fail, want %d", when, is, n)
		}
	}
	wants("at first", 0)
	for range 3 {
		send, _ := p.next(now, 0)
		send[0].fails = true
		p.retry(send[0], now.Add(time.Minute))
	}
	if len(p.rows) != 2 || len(p.resting) != 2 {
		t.Fatalf("%d messages are in memory, and %d lanes have left it", len(p.rows), len(p.resting))
	}
	wants("at rest", 3)
	p.full(nil, now.Add(time.Minute))
	wants("before they are read again", 3)
	p.add(entries[:1])
	wants("after one is read again", 3)
	p.confirm(p.known[1])
	wants("after that one is confirmed", 2)
	p.full(nil, now.Add(2*time.Minute))
	wants("after the other is gone", 1)
}
