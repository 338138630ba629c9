package httplb

import "sync/atomic"

// budget bounds the repeats: each request adds a part of a repeat. Counts are in thousandths.
type budget struct {
	share, most int64
	left        atomic.Int64
}

const whole = 1000

func (b *budget) fill(share float64, reserve int) {
	if share < 0 {
		return
	}
	b.share, b.most = max(int64(share*whole), 1), int64(reserve)*whole
	b.left.Store(b.most)
}

// earn adds the share of a request. A full budget is not written, so that requests share no cache line that changes.
func (b *budget) earn() {
	if b.left.Load() < b.most {
		b.left.Add(b.share)
	}
}

func (b *budget) spend() bool {
	if b.most == 0 {
		return true
	}
	for {
		left := b.left.Load()
		if left < whole {
			return false
		}
		if b.left.CompareAndSwap(left, left-whole) {
			return true
		}
	}
}

func (b *budget) refund() {
	if b.most > 0 {
		b.left.Add(whole)
	}
}
