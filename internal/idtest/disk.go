package idtest

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// ID is an identifier of up to 128 bits.
type ID struct{ High, Low uint64 }

func compare(a, b ID) int {
	if a.High != b.High {
		return cmp.Compare(a.High, b.High)
	}
	return cmp.Compare(a.Low, b.Low)
}

// String is the number, or the two halves in hexadecimal.
func (i ID) String() string {
	if i.High == 0 {
		return fmt.Sprint(i.Low)
	}
	return fmt.Sprintf("%016x%016x", i.High, i.Low)
}

// DiskChecker is a [Checker] of hundreds of millions of IDs, which are kept in files. Equal IDs
// are in the same file, by a hash. Check sorts a file at a time, so the answer is exact. A DiskChecker is safe for concurrent
// use, and Check is called once in the end.
type DiskChecker struct {
	unordered bool

	mu    sync.Mutex
	parts [32]part
	n     int
	err   error // the first fault
}

type part struct {
	file *os.File
	to   *bufio.Writer
}

// DiskLog has the IDs that one goroutine got, in order.
type DiskLog struct {
	checker *DiskChecker
	last    ID
	begun   bool
}

// NewDiskChecker returns a checker that has seen nothing, with files in a folder of its own. Unordered
// says that the IDs of a goroutine need not rise.
func NewDiskChecker(folder string, unordered bool) (*DiskChecker, error) {
	c := &DiskChecker{unordered: unordered}
	for i := range c.parts {
		p := &c.parts[i]
		var err error
		if p.file, err = os.Create(filepath.Join(folder, fmt.Sprint(i))); err != nil {
			return nil, errors.Join(err, c.close())
		}
		p.to = bufio.NewWriterSize(p.file, 1<<15)
	}
	return c, nil
}

func (c *DiskChecker) close() (err error) {
	for i := range c.parts {
		if p := &c.parts[i]; p.file != nil {
			err = errors.Join(err, p.file.Close())
		}
	}
	return err
}

// Log returns a log for one goroutine.
func (c *DiskChecker) Log() *DiskLog { return &DiskLog{checker: c} }

// Add notes the next IDs of the goroutine.
func (l *DiskLog) Add(ids ...ID) {
	c := l.checker
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, is := range ids {
		if c.err == nil && l.begun && !c.unordered && compare(is, l.last) <= 0 {
			c.err = fmt.Errorf("a goroutine got %v after %v", is, l.last)
		}
		l.last, l.begun = is, true
		if err := c.parts[hash(is)].add(is); err != nil {
			c.err = err
		}
	}
	c.n += len(ids)
}

// hash is the number of the part of an ID. hash uses the upper bits of a product, which depend on all bits.
func hash(is ID) int { return int((is.High ^ is.Low) * 0x9e3779b97f4a7c15 >> 59) }

// add writes an ID as the varint of its upper half, which is mostly one byte of 0, and its lower half.
func (p *part) add(is ID) error {
	var text [binary.MaxVarintLen64 + 8]byte
	_, err := p.to.Write(binary.BigEndian.AppendUint64(binary.AppendUvarint(text[:0], is.High), is.Low))
	return err
}

// Len returns how many IDs there are so far.
func (c *DiskChecker) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// Check returns how many IDs there are, and the first fault. All goroutines must have ended.
func (c *DiskChecker) Check() (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, twice := 0, 0
	var first ID
	for i := range c.parts {
		ids, reading := c.parts[i].sorted()
		err = cmp.Or(err, reading)
		found += len(ids)
		for j := 1; j < len(ids); j++ {
			if ids[j] == ids[j-1] {
				if twice == 0 {
					first = ids[j]
				}
				twice++
			}
		}
	}
	switch err = errors.Join(err, c.close()); {
	case err != nil:
	case found != c.n:
		err = fmt.Errorf("the files have %d IDs of %d", found, c.n)
	case twice == 0:
		err = c.err
	default:
		err = fmt.Errorf("%v was handed out twice, and so were %d more", first, twice-1)
	}
	return c.n, err
}

// sorted returns the IDs of a part.
func (p *part) sorted() (ids []ID, err error) {
	if err := p.to.Flush(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(p.file.Name())
	if err != nil {
		return nil, err
	}
	for len(text) > 0 {
		high, n := binary.Uvarint(text)
		if n <= 0 || len(text) < n+8 {
			return nil, fmt.Errorf("%s is damaged", p.file.Name())
		}
		ids = append(ids, ID{high, binary.BigEndian.Uint64(text[n:])})
		text = text[n+8:]
	}
	slices.SortFunc(ids, compare)
	return ids, nil
}
