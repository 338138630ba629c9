package idtest

import (
	"fmt"
	"sync"
)

// Dense is a [Checker] of numbers that stand close together. It takes some bits for each number, so it
// is for hundreds of millions. The zero Dense has seen nothing. It is safe for concurrent use.
type Dense struct {
	mu    sync.Mutex
	pages map[int64]*[pageBits / 64]uint64
	n     int
	err   error // the first fault
}

const pageBits = 1 << 16

// DenseLog has the numbers that one goroutine got, in order.
type DenseLog struct {
	dense *Dense
	last  int64
}

// Log returns a log for one goroutine.
func (d *Dense) Log() *DenseLog { return &DenseLog{dense: d} }

// Add notes the next numbers of the goroutine, from 1 on.
func (l *DenseLog) Add(numbers ...int64) {
	d := l.dense
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pages == nil {
		d.pages = make(map[int64]*[pageBits / 64]uint64)
	}
	for _, n := range numbers {
		if n <= l.last && d.err == nil {
			d.err = fmt.Errorf("a goroutine got %d after %d", n, l.last)
		}
		l.last = n
		page := d.pages[n/pageBits]
		if page == nil {
			page = new([pageBits / 64]uint64)
			d.pages[n/pageBits] = page
		}
		word, bit := &page[n%pageBits/64], uint64(1)<<(n%64)
		if *word&bit != 0 && d.err == nil {
			d.err = fmt.Errorf("%d was handed out twice", n)
		}
		*word |= bit
		d.n++
	}
}

// Check returns how many numbers there are, and the first fault.
func (d *Dense) Check() (n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n, d.err
}
