package cli

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

// accessLog writes a line for each request beside the work. Requests do not wait for a slow reader: lines are dropped and counted.
type accessLog struct {
	lines   chan []byte
	dropped atomic.Int64
	to      io.Writer
	waiting int64         // lines that are not yet written, of run
	enough  chan struct{} // closed when the log is to end
	ended   chan struct{}
}

// mostLogged is how many lines wait at most.
const mostLogged = 10_000

func newAccessLog(to io.Writer) *accessLog {
	l := &accessLog{to: to, lines: make(chan []byte, mostLogged), enough: make(chan struct{}), ended: make(chan struct{})}
	go l.run(bufio.NewWriterSize(to, 64<<10))
	return l
}

func (l *accessLog) run(w *bufio.Writer) {
	defer close(l.ended)
	for {
		select {
		case line := <-l.lines:
			l.put(w, line)
			continue
		default:
			l.flush(w)
		}
		select {
		case line := <-l.lines:
			l.put(w, line)
		case <-l.enough:
			if len(l.lines) == 0 {
				return
			}
		}
	}
}

func (l *accessLog) put(w *bufio.Writer, line []byte) {
	if w.Available() < len(line) {
		l.flush(w) // lines stay whole
	}
	w.Write(line) //nolint:errcheck // flush gets the error as well
	l.waiting++
}

// flush writes the lines. After an error, as of a full disk, these lines count as dropped, and later lines may be written again.
func (l *accessLog) flush(w *bufio.Writer) {
	if w.Flush() != nil {
		l.dropped.Add(l.waiting)
		w.Reset(l.to)
	}
	l.waiting = 0
}

// end writes the lines that wait, if the reader takes them soon.
func (l *accessLog) end() {
	close(l.enough)
	soon(closeWithin, func() { <-l.ended })
}

// logged is a line of the access log. Queries and headers may have secrets.
type logged struct {
	Time   string  `json:"time"` // of the request
	Client string  `json:"client"`
	Method string  `json:"method"`
	Host   string  `json:"host"`
	Path   string  `json:"path"`
	Proto  string  `json:"proto"`
	Status int     `json:"status"` // 0: the client left, or was cut, before the response began
	Bytes  int64   `json:"bytes"`  // of the body
	MS     float64 `json:"ms"`     // to the end of the response
	Member string  `json:"member"` // that was tried last
	Tries  int     `json:"tries"`
}

func (l *accessLog) write(is *exchange, r *http.Request, client netip.Addr) {
	line, err := json.Marshal(logged{
		Time: is.began.UTC().Format("2006-01-02T15:04:05.000Z"), Client: client.String(), Method: r.Method, Host: r.Host, Path: r.URL.EscapedPath(),
		Proto: r.Proto, Status: is.status, Bytes: is.bytes, MS: float64(time.Since(is.began).Microseconds()) / 1000, Member: is.member, Tries: is.tries,
	})
	if err != nil {
		return
	}
	select {
	case l.lines <- append(line, '\n'):
	default:
		l.dropped.Add(1)
	}
}
