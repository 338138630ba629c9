package sqliteengine

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
)

func benchEngine(b *testing.B, path string) (*Engine, engine.Session) {
	b.Helper()
	e, err := New(b.Context(), path, nil)
	if err != nil {
		b.Fatal(err)
	}
	s, err := e.Open(b.Context(), engine.SessionOptions{TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		s.Close(b.Context())
		e.Close()
	})
	return e, s
}

// The floor and the lock run by turns in batches, so that both see the same
// machine. A lock and unlock are two transactions.
func BenchmarkEnterLeave(b *testing.B) {
	const batch = 1000
	e, s := benchEngine(b, b.TempDir()+"/pawl.db")
	if _, err := e.db.ExecContext(b.Context(), `CREATE TABLE floor (n INTEGER PRIMARY KEY, s TEXT)`); err != nil {
		b.Fatal(err)
	}
	insert, err := e.db.PrepareContext(b.Context(), `INSERT INTO floor VALUES (?, ?)`)
	if err != nil {
		b.Fatal(err)
	}
	defer insert.Close()
	var floor, lock []time.Duration
	n := 0
	for b.Loop() {
		begun := time.Now()
		for range batch {
			n++
			tx, err := e.db.BeginTx(b.Context(), nil)
			if err == nil {
				_, err = tx.StmtContext(b.Context(), insert).ExecContext(b.Context(), n, "order/42")
			}
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		middle := time.Now()
		for range batch {
			n++
			c := mutex("order/42", strconv.Itoa(n))
			if g, err := s.Enter(b.Context(), c, true); err != nil || !g.Held() {
				b.Fatal(g, err)
			}
			if err := s.Leave(b.Context(), c.Resource, c.ID); err != nil {
				b.Fatal(err)
			}
		}
		floor = append(floor, middle.Sub(begun)/batch)
		lock = append(lock, time.Since(middle)/batch/2)
	}
	slices.Sort(floor)
	slices.Sort(lock)
	f, l := floor[len(floor)/2], lock[len(lock)/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(f.Nanoseconds())/1000, "µs/floor")
	b.ReportMetric(float64(l.Nanoseconds())/1000, "µs/verb")
	b.ReportMetric(float64(l)/float64(f), "ratio")
}

// A value is flushed to the disk.
func BenchmarkPut(b *testing.B) {
	e, _ := benchEngine(b, b.TempDir()+"/pawl.db")
	var version uint64
	for b.Loop() {
		var err error
		if version, err = e.Put(b.Context(), "counter", []byte("1"), version); err != nil {
			b.Fatal(err)
		}
	}
}

// One handoff after the other through a queue of waiters, each of which leaves
// when it has the lock. With two engines, each is in the other one.
func BenchmarkHandoff(b *testing.B) {
	for _, engines := range []int{1, 2} {
		for _, waiters := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("engines=%d/waiters=%d", engines, waiters), func(b *testing.B) {
				path := b.TempDir() + "/pawl.db"
				var sessions []engine.Session
				for range engines {
					_, s := benchEngine(b, path)
					sessions = append(sessions, s)
				}
				b.ResetTimer()
				for i := 0; b.Loop(); i++ {
					b.StopTimer()
					drain(b, sessions, waiters, fmt.Sprint("order/", i))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*waiters)/1000, "µs/handoff")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func drain(b *testing.B, sessions []engine.Session, waiters int, name string) {
	var tasks sync.WaitGroup
	head := mutex(name, "head")
	if _, err := sessions[0].Enter(b.Context(), head, true); err != nil {
		b.Fatal(err)
	}
	for i := range waiters {
		s, c := sessions[i%len(sessions)], mutex(name, fmt.Sprint(i))
		if _, err := s.Enter(b.Context(), c, true); err != nil {
			b.Fatal(err)
		}
		tasks.Go(func() {
			_, err := s.Await(b.Context(), c)
			if err == nil {
				err = s.Leave(b.Context(), name, c.ID)
			}
			if err != nil {
				b.Error(err)
			}
		})
	}
	b.StartTimer()
	if err := sessions[0].Leave(b.Context(), name, head.ID); err != nil {
		b.Fatal(err)
	}
	tasks.Wait()
}
