// Package idtest holds the rules that every maker of identifiers has to keep. Package idtest serves the tests
// of package id and of the packages below id.
package idtest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// Checker collects IDs of any number of goroutines, and finds IDs that were handed out twice or
// that fell. The zero Checker has seen nothing. A Checker is safe for concurrent use.
type Checker[T cmp.Ordered] struct {
	// Unordered says that the IDs of a goroutine need not rise.
	Unordered bool

	mu   sync.Mutex
	logs []*Log[T]
}

// Log has the IDs that one goroutine got, in order.
type Log[T cmp.Ordered] struct{ ids []T }

// Log returns a log for one goroutine.
func (c *Checker[T]) Log() *Log[T] {
	l := &Log[T]{}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs = append(c.logs, l)
	return l
}

// Add notes what the goroutine got.
func (l *Log[T]) Add(ids ...T) { l.ids = append(l.ids, ids...) }

// Check returns how many IDs there are, and the first fault. All goroutines must have ended.
func (c *Checker[T]) Check() (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []T
	for _, l := range c.logs {
		for i := 1; i < len(l.ids) && !c.Unordered && err == nil; i++ {
			if l.ids[i] <= l.ids[i-1] {
				err = fmt.Errorf("a goroutine got %v after %v", l.ids[i], l.ids[i-1])
			}
		}
		all = append(all, l.ids...)
	}
	slices.Sort(all)
	twice := 0
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			if twice == 0 {
				err = fmt.Errorf("%v was handed out twice", all[i])
			}
			twice++
		}
	}
	if twice > 1 {
		err = fmt.Errorf("%w, and so were %d more", err, twice-1)
	}
	return len(all), err
}
