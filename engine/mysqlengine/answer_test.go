package mysqlengine_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// unended is a connection that keeps the end of an answer back, after the rows, when it is armed.
type unended struct {
	net.Conn
	packets *bufio.Reader
	rest    []byte // of a packet
	armed   *atomic.Bool
	kept    chan<- struct{} // told when an end is kept back
	closed  chan struct{}
	once    sync.Once
	last    bool // the rows have ended, and the call has not
}

func (c *unended) Write(p []byte) (int, error) { c.last = false; return c.Conn.Write(p) }

func (c *unended) Close() error { c.once.Do(func() { close(c.closed) }); return c.Conn.Close() }

func (c *unended) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		if c.last && c.armed.Load() {
			c.kept <- struct{}{}
			<-c.closed
			return 0, net.ErrClosed
		}
		var head [4]byte
		if _, err := io.ReadFull(c.packets, head[:]); err != nil {
			return 0, err
		}
		size := binary.LittleEndian.Uint32(slices.Concat(head[:3], []byte{0}))
		c.rest = append(head[:], make([]byte, size)...)
		if _, err := io.ReadFull(c.packets, c.rest[4:]); err != nil {
			return 0, err
		}
		// The end of a list: a mark, two numbers of a byte each or one of two, and the status. This says that more results follow.
		const mark, more = 0xFE, 0x08
		c.last = (size == 5 || size == 7) && c.rest[4] == mark && c.rest[7]&more != 0
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// TestEndOfAnAnswer: a server stops when it has sent the rows of an answer, and not the end of the call. The caller is back when its ctx
// ends, although the driver would wait on.
func TestEndOfAnAnswer(t *testing.T) {
	var armed atomic.Bool
	kept := make(chan struct{}, 10)
	db := testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr, func(c *mysql.Config) {
		c.User = "root"
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &unended{Conn: conn, packets: bufio.NewReader(conn), armed: &armed, kept: kept, closed: make(chan struct{})}, err
		}
	})
	lease, err := mysqlengine.New(t.Context(), db, &mysqlengine.Options{Prefix: "ends_"})
	leasetest.Opened(t, lease, err)
	for name, e := range map[string]engine.Engine{"row": newRow(t, db, "ends_"), "lease": lease} {
		t.Run(name, func(t *testing.T) {
			s := sessiontest.Open(t, e, leasetest.TTL)
			sessiontest.Leave(t, s, func() *engine.Claim { c := sessiontest.Whole(t, sessiontest.Fair); sessiontest.Hold(t, s, c); return c }())
			armed.Store(true)
			defer armed.Store(false)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			entered := make(chan error, 1)
			go func() {
				_, err := s.Enter(ctx, sessiontest.Whole(t, sessiontest.Fair), false)
				entered <- err
			}()
			select {
			case <-kept:
			case err := <-entered:
				t.Fatalf("no end was kept back: %v", err)
			}
			cancel()
			select {
			case err := <-entered:
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the caller still waits for the end of the answer")
			}
		})
	}
}
