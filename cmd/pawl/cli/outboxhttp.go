package cli

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/outbox"
)

// relayService tells how a relay does. relayService is safe for concurrent use.
type relayService struct {
	relay  *outbox.Relay
	table  *outbox.Table
	db     *sql.DB
	name   string // of the table
	ending atomic.Bool

	mu    sync.Mutex
	read  time.Time // when stats were read, or could not be
	stats outbox.TableStats
	err   error
}

func (s *relayService) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	return mux
}

// serveReady looks at the table.
func (s *relayService) serveReady(w http.ResponseWriter, r *http.Request) {
	if s.ending.Load() {
		answer(w, http.StatusServiceUnavailable, "the relay ends")
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), readyWithin, errReadyLate)
	defer cancel()
	if err := s.table.Check(ctx, s.db); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		answer(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	answer(w, http.StatusOK, "ready")
}

// freshStats is how old the figures of the table may be. To read them costs the database more when more messages wait.
const freshStats = 10 * time.Second

// tableStats returns the figures of the table.
func (s *relayService) tableStats(ctx context.Context) (outbox.TableStats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.read) >= freshStats {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveWithin) // the next client gets the same figures
		defer cancel()
		s.stats, s.err = s.table.Stats(ctx, s.db)
		s.read = time.Now()
	}
	return s.stats, s.err
}

// serveMetrics writes figures in the text format of Prometheus. Those of the table are missing while the database does not answer.
func (s *relayService) serveMetrics(w http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	name := labels.Replace(s.name)
	metric := func(kind, metric, help string, value any) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s{table=\"%s\"} %v\n", metric, help, metric, kind, metric, name, value)
	}
	is := s.relay.Stats()
	metric("gauge", "pawl_outbox_partitions", "Partitions that this relay holds, by its locks and by the table.", is.Partitions)
	metric("gauge", "pawl_outbox_sending", "Messages that are under way.", is.Sending)
	metric("gauge", "pawl_outbox_hung", "Sendings that have not returned in time.", is.Hung)
	metric("counter", "pawl_outbox_confirmed_total", "Sendings that the broker confirmed.", is.Confirmed)
	metric("counter", "pawl_outbox_refused_total", "Sendings that the broker refused.", is.Refused)
	metric("counter", "pawl_outbox_blocked_total", "Sendings while the broker was away or took nothing.", is.Blocked)
	metric("counter", "pawl_outbox_failed_total", "Sendings that failed otherwise.", is.Failed)
	metric("counter", "pawl_outbox_died_total", "Messages that this relay marked as dead.", is.Dead)
	table, err := s.tableStats(r.Context())
	metric("gauge", "pawl_outbox_table_read", "1 if the figures of the table could be read.", map[bool]int{true: 1}[err == nil])
	if err == nil {
		metric("gauge", "pawl_outbox_pending", "Messages of the table that are not confirmed and not dead.", table.Pending)
		metric("gauge", "pawl_outbox_oldest_seconds", "How long the oldest of them has waited.", table.Oldest.Seconds())
		metric("gauge", "pawl_outbox_dead", "Messages of the table that are dead.", table.Dead)
		metric("gauge", "pawl_outbox_halted_keys", "Keys of the table with a dead message. Their later messages wait, unless the relays have --continue-keys.", table.HaltedKeys)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(b.Bytes()) //nolint:errcheck // the client has gone
}
