//go:build unix

package threephase_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase"
	_ "github.com/pawl-go/pawl/internal/killtest" // ends a worker with its test
)

// station is an agent in a process of its own.
type station struct {
	Name      string
	Peers     map[string]string
	Banks     [2]string // names of the agents with databases
	Log       string    // a file of SQLite
	Decisions string    // a file
	Table     string
	Dialect   dialect.Dialect // 0: a witness
	Source    string
	Timeout   time.Duration
	Classic   bool
}

// move is a payload: an account of the agent's bank gets so much.
type move struct{ Account, N int }

// drivers are the names for sql.Open.
var drivers = map[dialect.Dialect]string{dialect.PostgreSQL: "pgx", dialect.MySQL: "mysql"}

// worker is the process of a station.
type worker struct {
	station
	agent     *threephase.Agent
	decisions *os.File
	records   atomic.Int64 // stored
	mu        sync.Mutex
	at        int64         // the number of the record at which something happens
	reached   chan struct{} // closed then; nil: the process kills itself
}

// serveStation is the main function of a worker, whose listener is the third file.
func serveStation(ctx context.Context) error {
	w := &worker{}
	if err := json.Unmarshal([]byte(os.Getenv("PAWL_3PC_WORKER")), &w.station); err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	if w.decisions, err = os.OpenFile(w.Decisions, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
		return err
	}
	db, err := sql.Open("sqlite3", "file:"+w.Log+"?_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	if err != nil {
		return err
	}
	log, err := threephase.NewLog(dialect.SQLite, db, nil)
	if err == nil {
		err = log.Migrate(ctx)
	}
	if err != nil {
		return err
	}
	handler, err := w.handler()
	if err != nil {
		return err
	}
	threephase.SetStored(w.stored)
	opts := &threephase.Options{Timeout: w.Timeout}
	if w.Classic {
		opts.Mode = threephase.Classic
	}
	if w.agent, err = threephase.New(ctx, log, w.Name, w.Peers, handler, opts); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", w.agent)
	mux.HandleFunc("/undecided", func(out http.ResponseWriter, _ *http.Request) { fmt.Fprint(out, w.agent.Status().Undecided) })
	mux.HandleFunc("/commit", w.commit)
	mux.HandleFunc("/die", func(_ http.ResponseWriter, r *http.Request) { w.arm(r, nil) })
	return http.Serve(listener, mux)
}

func (w *worker) handler() (threephase.Handler, error) {
	if w.Dialect == 0 {
		return nil, nil
	}
	db, err := sql.Open(drivers[w.Dialect], w.Source)
	if err != nil {
		return nil, err
	}
	resource := dtx.PostgreSQL(w.Name, db)
	if w.Dialect == dialect.MySQL {
		resource = dtx.MySQL(w.Name, db)
	}
	return threephase.Database(resource, func(ctx context.Context, db dialect.DB, id threephase.ID, payload []byte) error {
		var m move
		if err := json.Unmarshal(payload, &m); err != nil {
			return err
		}
		for _, query := range []string{fmt.Sprintf("UPDATE %s SET n = n + %d WHERE id = %d", w.Table, m.N, m.Account), fmt.Sprintf("INSERT INTO %s_moves VALUES ('%v', %d)", w.Table, id, m.N)} {
			if _, err := db.ExecContext(ctx, query); err != nil {
				return err
			}
		}
		return nil
	})
}

// stored counts a record, and writes each decision to a file.
func (w *worker) stored(id threephase.ID, state threephase.State, elections int, known time.Duration) {
	if state == threephase.Committed || state == threephase.Aborted {
		fmt.Fprintf(w.decisions, "%v %v %d %d\n", id, state, elections, known.Milliseconds()) //nolint:errcheck // the test misses it
	}
	n := w.records.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.at == 0 || n < w.at:
	case w.reached == nil:
		syscall.Kill(os.Getpid(), syscall.SIGKILL) //nolint:errcheck // the test waits for it
		select {}                                  // this thread may run on for a moment
	default:
		close(w.reached)
		w.at = 0
	}
}

// arm chooses the record at which the process kills itself, or closes reached.
func (w *worker) arm(r *http.Request, reached chan struct{}) {
	at, _ := strconv.ParseInt(r.FormValue("at"), 10, 64)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at, w.reached = w.records.Load()+at, reached
}

// transfers is how many transactions a request begins, with an account each.
const transfers = 6

// commit begins transactions, and answers at a record, or when all have ended.
func (w *worker) commit(out http.ResponseWriter, r *http.Request) {
	reached := make(chan struct{})
	if r.FormValue("kill") != "" {
		w.arm(r, nil)
	} else {
		w.arm(r, reached)
	}
	ended := make(chan struct{})
	var committed atomic.Int64
	go func() {
		defer close(ended)
		var all sync.WaitGroup
		for i := range transfers {
			all.Go(func() {
				payloads := make(map[string][]byte)
				for j, name := range w.Banks {
					payloads[name], _ = json.Marshal(move{i, []int{-1, 1}[j]}) //nolint:errcheck // two numbers
				}
				if _, err := w.agent.Commit(context.Background(), payloads); err == nil || errors.Is(err, dtx.ErrPending) {
					committed.Add(1)
				}
			})
		}
		all.Wait()
	}()
	select {
	case <-reached:
	case <-ended:
		if out.Write([]byte("ended ")); r.FormValue("kill") == "" { //nolint:errcheck // the test misses it
			w.mu.Lock()
			w.at = 0
			w.mu.Unlock()
		}
	}
	fmt.Fprint(out, committed.Load()) //nolint:errcheck // as above
}
