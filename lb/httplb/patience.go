package httplb

import (
	"sync/atomic"
	"time"
)

// patience ends a try whose node is silent for too long. While the try reads the body of the request, the caller is slow and not the
// node. So that time does not count. The nil patience has no end.
type patience struct {
	most  time.Duration
	timer *time.Timer
	over  atomic.Bool // the try has a result, or took too long
}

func newPatience(most time.Duration, end func()) *patience {
	p := &patience{most: most}
	p.timer = time.AfterFunc(most, func() {
		if p.over.CompareAndSwap(false, true) {
			end()
		}
	})
	return p
}

// pause begins a read of the body.
func (p *patience) pause() {
	if p != nil {
		p.timer.Stop()
	}
}

// resume ends a read of the body: the node has taken what came before.
func (p *patience) resume() {
	if p != nil && !p.over.Load() {
		p.timer.Reset(p.most)
	}
}

// end reports whether the result of the try comes too late. The timer does nothing from then on.
func (p *patience) end() (late bool) {
	if p == nil {
		return false
	}
	p.timer.Stop()
	return !p.over.CompareAndSwap(false, true)
}
