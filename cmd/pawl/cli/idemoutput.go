package cli

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/pawl-go/pawl"
)

// outcome is what idem run keeps of a command: the exit code, and chunks of both streams in the
// order in which pawl read them. The kept result begins with 3 bytes: the format, whether the output was
// cut, the exit code. The chunks follow: the stream, the length in 3 bytes, the text.
type outcome struct {
	code int
	cut  bool

	mu     sync.Mutex
	chunks []byte
	last   int // where the last chunk begins
	most   int // how many bytes chunks has at most
}

const (
	outcomeFormat = 1
	outcomeHead   = 3
	chunkHead     = 4
)

// A chunk is of one of these streams.
const (
	toStdout = 1
	toStderr = 2
)

// add keeps text, or the part for which there is room. After the first byte that is left out nothing
// more is kept, so that the kept part has no gaps.
func (o *outcome) add(stream byte, text []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fresh := len(o.chunks) == 0 || o.chunks[o.last] != stream
	room := o.most - len(o.chunks)
	if fresh {
		room -= chunkHead
	}
	if n := max(0, min(room, len(text))); n < len(text) && !o.cut {
		defer func() { o.cut = true }()
		text = text[:n]
	}
	if o.cut || len(text) == 0 {
		return
	}
	if fresh {
		o.last = len(o.chunks)
		o.chunks = append(o.chunks, stream, 0, 0, 0)
	}
	o.chunks = append(o.chunks, text...)
	n := len(o.chunks) - o.last - chunkHead
	copy(o.chunks[o.last+1:], []byte{byte(n >> 16), byte(n >> 8), byte(n)})
}

func (o *outcome) encode() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	head := []byte{outcomeFormat, 0, byte(o.code)}
	if o.cut {
		head[1] = 1
	}
	return append(head, o.chunks...)
}

var errForeign = fmt.Errorf("%w: the kept result is not that of a command", pawl.ErrInvalid)

func decodeOutcome(kept []byte) (*outcome, error) {
	if len(kept) < outcomeHead || kept[0] != outcomeFormat || kept[1] > 1 {
		return nil, errForeign
	}
	o := &outcome{code: int(kept[2]), cut: kept[1] == 1, chunks: kept[outcomeHead:]}
	return o, o.each(func(byte, []byte) error { return nil })
}

// each calls fn with each chunk.
func (o *outcome) each(fn func(stream byte, text []byte) error) error {
	for rest := o.chunks; len(rest) > 0; {
		if len(rest) < chunkHead || rest[0] != toStdout && rest[0] != toStderr {
			return errForeign
		}
		n := chunkHead + int(binary.BigEndian.Uint32(rest)&0xffffff)
		if n > len(rest) {
			return errForeign
		}
		if err := fn(rest[0], rest[chunkHead:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// size is how many bytes of output are kept.
func (o *outcome) size() (n int) {
	o.each(func(_ byte, text []byte) error { n += len(text); return nil }) //nolint:errcheck // decodeOutcome has checked it
	return n
}

// print writes the chunks. A stream whose reader has gone is left out.
func (o *outcome) print(stdout, stderr io.Writer) error {
	to := map[byte]io.Writer{toStdout: stdout, toStderr: stderr}
	return o.each(func(stream byte, text []byte) error {
		if to[stream] == nil {
			return nil
		}
		_, err := to[stream].Write(text)
		if errors.Is(err, syscall.EPIPE) {
			delete(to, stream)
			return nil
		}
		return err
	})
}

// codes are exit codes.
type codes [256]bool

// parseCodes reads a list of exit codes and ranges, such as 0,3,64-78.
func parseCodes(list string) (c codes, err error) {
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 8)
		last, err2 := strconv.ParseUint(to, 10, 8)
		if err1 != nil || err2 != nil || first > last {
			return c, usageError("--keep-codes is %q: a list such as 0,3,64-78 of codes from 0 to 255 is allowed", list)
		}
		for code := first; code <= last; code++ {
			c[code] = true
		}
	}
	return c, nil
}

// cutText says that not all output was kept.
func (o *outcome) cutText(key string) error {
	return fmt.Errorf("%q: the rest of the output was not kept: %d bytes were", key, o.size())
}
