package sqlidem_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/internal/sqltest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// The test binary is also a process of TestKilledProcesses, with its load in this variable.
const beProcess = "PAWL_IDEM_PROCESS"

func TestMain(m *testing.M) {
	if text := os.Getenv(beProcess); text != "" {
		var l load
		err := json.Unmarshal([]byte(text), &l)
		if err == nil {
			err = l.work(context.Background())
		}
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(testservers.Main(m))
}

const workers = 64 // goroutines of a process

// load is the work of all processes: every key, in one order, so that they meet at the same keys.
type load struct {
	On                                     sqltest.Database
	Table, Effects, NaiveTable, NaiveWrote string
	Keys, From                             int // From is the first key of a process
	db                                     *sql.DB
	store                                  *sqlidem.Store
}

func (l *load) open() (err error) {
	if l.db, err = l.On.Open(); err == nil {
		l.db.SetMaxOpenConns(6)
		l.store, err = sqlidem.New(l.On.Dialect, &sqlidem.Options{Table: l.Table})
	}
	return err
}

// work goes through the keys until the process is killed.
func (l *load) work(ctx context.Context) error {
	if err := l.open(); err != nil {
		return err
	}
	var next atomic.Int64
	wrong := make(chan error)
	for range workers {
		go func() {
			for {
				i := (l.From + int(next.Add(1)-1)) % l.Keys
				id := fmt.Sprint("k", i)
				if _, _, err := l.call(ctx, id); err != nil {
					wrong <- err
				}
				if i%3 == 0 {
					l.naive(ctx, id) //nolint:errcheck // it is naive
				}
			}
		}()
	}
	return <-wrong
}

// call makes one call until its outcome is known. Only a wrong outcome is an error.
func (l *load) call(ctx context.Context, id string) (n int64, replayed bool, err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		n, replayed, err := l.try(ctx, id)
		wrong := errors.Is(err, idem.ErrReused) || errors.Is(err, idem.ErrUnfinished) || errors.Is(err, idem.ErrTakenOver) || ctx.Err() != nil
		if err == nil || wrong {
			return n, replayed, err
		}
		time.Sleep(rand.N(pause)) // the connection is lost, or another transaction is in the way
	}
}

func (l *load) try(ctx context.Context, id string) (n int64, replayed bool, err error) {
	tx, err := l.On.Begin(ctx, l.db)
	if err != nil {
		return 0, false, err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	n, replayed, err = l.do(ctx, tx, id, 50)
	return n, replayed, errors.Join(err, tx.Commit()) // also after an error
}

// do has the effect of a key. One function in so many fails, and its effect must go.
func (l *load) do(ctx context.Context, tx dialect.DB, id string, failing int64) (n int64, replayed bool, err error) {
	return idem.Do(ctx, l.store.In(tx), key(id), print(id), func(ctx context.Context) (int64, error) {
		n := rand.Int64()
		if err := l.insert(ctx, tx, l.Effects, id, n); err != nil || n%failing != 0 {
			return n, err
		}
		return 0, errors.New("it fails")
	})
}

// naive looks for the key, and then has the effect and notes the key in one transaction.
func (l *load) naive(ctx context.Context, id string) error {
	var found int
	query := dialect.New(l.On.Dialect).Add("SELECT count(*) FROM " + l.NaiveTable + " WHERE name = ").Value(id)
	if err := query.Scan(ctx, l.db, &found); err != nil || found > 0 {
		return err
	}
	tx, err := l.On.Begin(ctx, l.db)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if err := errors.Join(l.insert(ctx, tx, l.NaiveWrote, id, 1), l.insert(ctx, tx, l.NaiveTable, id, 1)); err != nil {
		return err
	}
	return tx.Commit()
}

func (l *load) insert(ctx context.Context, tx dialect.DB, table, id string, n int64) error {
	_, err := dialect.New(l.On.Dialect).Add("INSERT INTO "+table+" (name, n) VALUES (").Value(id).Add(", ").Value(n).Add(")").Exec(ctx, tx)
	return err
}

// effects returns the effects of each key.
func (f *fixture) effectsOf(table string) map[string][]int64 {
	f.Helper()
	rows, err := f.db.QueryContext(f.Context(), "SELECT name, n FROM "+table)
	if err != nil {
		f.Fatal(err)
	}
	defer rows.Close()
	all := make(map[string][]int64)
	for rows.Next() {
		var id string
		var n int64
		if err := rows.Scan(&id, &n); err != nil {
			f.Fatal(err)
		}
		all[id] = append(all[id], n)
	}
	if err := rows.Err(); err != nil {
		f.Fatal(err)
	}
	return all
}

// doubles returns how many keys have more than one effect: the checker.
func doubles(effects map[string][]int64) (n int) {
	for _, all := range effects {
		if len(all) > 1 {
			n++
		}
	}
	return n
}

// Of 4 processes with 64 goroutines each, which have the same keys, one is killed each second, and
// replies are lost. Each key has exactly one effect in the end, and each repeat gets its result. The same
// checker finds doubles of the naive form under the same load.
func TestKilledProcesses(t *testing.T) {
	keys, soak := 10_000, os.Getenv("PAWL_TEST_SOAK") != ""
	if soak {
		keys = 100_000
	}
	for _, d := range sqltest.All(t) {
		t.Run(d.Name, func(t *testing.T) {
			f := newFixture(t, d)
			l := load{On: d, Table: f.table, Effects: f.effects, NaiveTable: "naive_" + f.table, NaiveWrote: "naive_" + f.effects, Keys: keys}
			for _, table := range []string{l.NaiveTable, l.NaiveWrote} {
				f.exec("CREATE TABLE " + table + " (name varchar(100) NOT NULL, n bigint NOT NULL)")
				f.exec("CREATE INDEX i" + table + " ON " + table + " (name)")
				defer f.exec("DROP TABLE " + table)
			}
			lose, thaw := func() {}, func() {}
			switch d.Dialect {
			case dialect.PostgreSQL:
				p := proxy.New(t, testservers.SharedPostgres(t).Addr)
				l.On.Source, lose, thaw = testservers.PostgresURL(p.Addr), p.FreezeReplies, p.Thaw
			case dialect.MySQL:
				p := proxy.New(t, testservers.SharedMariaDB(t).Addr)
				l.On.Source, lose, thaw = strings.Replace(d.Source, testservers.SharedMariaDB(t).Addr, p.Addr, 1), p.FreezeReplies, p.Thaw
			}
			kill, stop := f.processes(l)
			more := func(kills int) bool { // a busy machine takes long to find the doubles of the naive form
				return kills < 4 || (kills < 9 || soak) && f.keysWithEffect() < keys || kills < 60 && doubles(f.effectsOf(l.NaiveWrote)) == 0
			}
			for kills := 0; more(kills); kills++ {
				<-time.After(800 * time.Millisecond) // in which they work
				lose()
				<-time.After(200 * time.Millisecond) // in which replies are lost
				kill()
				thaw()
			}
			<-time.After(500 * time.Millisecond) // as above
			stop()
			f.checkLoad(l)
		})
	}
}

// keysWithEffect returns how many keys have an effect.
func (f *fixture) keysWithEffect() (n int) {
	f.Helper()
	if err := f.db.QueryRowContext(f.Context(), "SELECT count(DISTINCT name) FROM "+f.effects).Scan(&n); err != nil {
		f.Error(err)
	}
	return n
}

// finish makes one call for each of the first keys, many of them in one transaction, and returns the results.
func (l *load) finish(ctx context.Context, keys int) (results []int64, replays int, err error) {
	tx, err := l.On.Begin(ctx, l.db)
	if err != nil {
		return nil, 0, err
	}
	for i := range keys {
		n, replayed, err := l.do(ctx, tx, fmt.Sprint("k", i), math.MaxInt64)
		if results = append(results, n); replayed {
			replays++
		}
		if err == nil && i%1000 == 999 {
			if err = tx.Commit(); err == nil {
				tx, err = l.On.Begin(ctx, l.db)
			}
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return results, replays, tx.Commit()
}

// checkLoad makes one call for each key that the processes have reached, and for some more. Then
// it compares results with effects.
func (f *fixture) checkLoad(l load) {
	underLoad, reached := 0, 0
	for id := range f.effectsOf(l.Effects) {
		i, err := strconv.Atoi(strings.TrimPrefix(id, "k"))
		if err != nil {
			f.Fatal(err)
		}
		underLoad, reached = underLoad+1, max(reached, i)
	}
	keys := min(l.Keys, reached+500)
	l.On = f.on
	if err := l.open(); err != nil {
		f.Fatal(err)
	}
	defer l.db.Close()
	results, replays, err := l.finish(f.Context(), keys)
	if err != nil {
		f.Fatal(err)
	}
	effects := f.effectsOf(l.Effects)
	for i, n := range results {
		if all := effects[fmt.Sprint("k", i)]; len(all) != 1 || all[0] != n {
			f.Errorf("k%d has the effects %v and the result %d", i, all, n)
		}
	}
	naive := f.effectsOf(l.NaiveWrote)
	f.Logf("%d keys, %d of them under load, %d replays after it; the naive form has %d doubles of %d keys",
		keys, underLoad, replays, doubles(naive), len(naive))
	if n := doubles(effects); n != 0 || len(effects) != keys || underLoad == 0 {
		f.Errorf("%d doubles of %d keys", n, len(effects))
	}
	if doubles(naive) == 0 {
		f.Error("the checker finds no double of the naive form")
	}
}

// process returns a process with this load, and its output.
func (l load) process() (*exec.Cmd, io.Reader, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), beProcess+"="+string(text))
	out, err := cmd.StdoutPipe()
	return cmd, out, err
}

// processes keeps 4 of them at work until stop is called, and kill kills one of them. That process is started again, at
// a key that the others have passed not long ago.
func (f *fixture) processes(l load) (kill, stop func()) {
	f.Helper()
	var mu sync.Mutex
	running := make([]*exec.Cmd, 4)
	ended := false
	var group sync.WaitGroup
	for i := range running {
		group.Go(func() {
			for l := l; ; {
				l.From = max(0, f.keysWithEffect()-200)
				cmd, out, err := l.process()
				mu.Lock()
				if err == nil && !ended {
					err = cmd.Start()
				}
				if running[i] = cmd; err != nil || ended {
					mu.Unlock()
					if err != nil {
						f.Error(err)
					}
					return
				}
				mu.Unlock()
				var said strings.Builder
				for lines := bufio.NewScanner(out); lines.Scan(); {
					said.WriteString(lines.Text() + "\n")
				}
				cmd.Wait() //nolint:errcheck // it was killed
				if said.Len() > 0 {
					f.Errorf("a process ended by itself: %s", said.String())
					return
				}
			}
		})
	}
	end := func(which ...*exec.Cmd) {
		for _, cmd := range which {
			if cmd != nil && cmd.Process != nil {
				cmd.Process.Kill() //nolint:errcheck // it may be dead
			}
		}
	}
	kill = func() {
		mu.Lock()
		defer mu.Unlock()
		end(running[rand.IntN(len(running))])
	}
	return kill, func() {
		mu.Lock()
		ended = true
		end(running...)
		mu.Unlock()
		group.Wait()
	}
}
