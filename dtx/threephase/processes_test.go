//go:build unix

package threephase_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/testservers"
)

// fleet is three agents in processes of their own, over PostgreSQL and MariaDB, and a witness. Proxies carry their messages.
type fleet struct {
	t        *testing.T
	stations map[string]station
	names    []string
	listens  map[string]*os.File
	addrs    map[string]string
	links    map[[2]string]*proxy.Proxy
	running  map[string]*exec.Cmd
	dbs      [2]*sql.DB
}

const accounts, balance = transfers, 1000

func newFleet(t *testing.T, number int, servers [2]string, timeout time.Duration, classic bool) *fleet {
	t.Helper()
	f := &fleet{t: t, stations: make(map[string]station), names: []string{fmt.Sprint("bank", number), fmt.Sprint("stock", number), fmt.Sprint("witness", number)},
		listens: make(map[string]*os.File), addrs: make(map[string]string), links: make(map[[2]string]*proxy.Proxy), running: make(map[string]*exec.Cmd)}
	for _, name := range f.names {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			f.addrs[name] = listener.Addr().String()
			f.listens[name], err = listener.(*net.TCPListener).File()
		}
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()                              //nolint:errcheck // its copy stays
		t.Cleanup(func() { f.listens[name].Close() }) //nolint:errcheck // nothing is lost
	}
	folder := t.TempDir()
	for i, name := range f.names {
		s := station{Name: name, Peers: make(map[string]string), Banks: [2]string{f.names[0], f.names[1]}, Log: filepath.Join(folder, name+".db"),
			Decisions: filepath.Join(folder, name+".txt"), Table: fmt.Sprintf("three_%d_%d", time.Now().UnixNano(), number), Timeout: timeout, Classic: classic}
		if i < 2 {
			s.Dialect, s.Source = []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL}[i], servers[i]
			f.dbs[i] = f.makeBank(s)
		}
		for _, other := range f.names {
			if other != name {
				f.links[[2]string{name, other}] = proxy.New(t, f.addrs[other])
				s.Peers[other] = "http://" + f.links[[2]string{name, other}].Addr + "/"
			}
		}
		f.stations[name] = s
		f.start(name)
	}
	t.Cleanup(func() {
		for _, name := range f.names {
			f.kill(name)
		}
	})
	return f
}

func (f *fleet) makeBank(s station) *sql.DB {
	db, err := sql.Open(drivers[s.Dialect], s.Source)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	queries := []string{"CREATE TABLE " + s.Table + " (id bigint PRIMARY KEY, n bigint NOT NULL)", "CREATE TABLE " + s.Table + "_moves (id varchar(60) PRIMARY KEY, n bigint NOT NULL)"}
	for id := range accounts {
		queries = append(queries, fmt.Sprintf("INSERT INTO %s VALUES (%d, %d)", s.Table, id, balance))
	}
	for _, query := range queries {
		if _, err := db.Exec(query); err != nil {
			f.t.Fatal(err)
		}
	}
	return db
}

// start starts the process of an agent.
func (f *fleet) start(name string) {
	f.t.Helper()
	text, err := json.Marshal(f.stations[name])
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PAWL_3PC_WORKER="+string(text), "PAWL_KILLTEST_WORKER=1")
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{f.listens[name]}
	if _, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.running[name] = cmd
}

// kill kills the process of an agent, if it lives.
func (f *fleet) kill(name string) {
	if cmd := f.running[name]; cmd != nil {
		cmd.Process.Kill() //nolint:errcheck // it may have killed itself
		cmd.Wait()         //nolint:errcheck // as above
		f.running[name] = nil
	}
}

// ask asks a process. A process that dies gives no answer.
func (f *fleet) ask(ctx context.Context, name, path string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.addrs[name]+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body) //nolint:errcheck // it may have died
	return string(text)
}

// settled waits until agents know all decisions.
func (f *fleet) settled(names ...string) {
	f.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		undecided := slices.ContainsFunc(names, func(name string) bool { return f.ask(f.t.Context(), name, "/undecided") != "0" })
		if !undecided {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("never: %v decide", names)
		}
	}
}

// split cuts an agent off from the others, in some way.
func (f *fleet) split(name string) {
	way := rand.IntN(3)
	for ends, link := range f.links {
		if ends[0] == name || ends[1] == name {
			[]func(){link.Freeze, link.FreezeReplies, link.Cut}[way]()
		}
	}
}

func (f *fleet) heal() {
	for _, link := range f.links {
		link.Heal()
	}
}

// round kills an agent, or cuts it off, at some record of some transactions, and lets the others decide. Then all come back. The result
// is the agents that were left, if the agent was the coordinator.
func (f *fleet) round(kill bool) (left []string) {
	coordinator := f.names[rand.IntN(len(f.names))]
	victim := coordinator
	if rand.IntN(2) == 0 {
		victim = f.names[rand.IntN(len(f.names))]
	}
	left = slices.DeleteFunc(slices.Clone(f.names), func(name string) bool { return name == victim })
	at := 1 + rand.IntN(3*transfers)
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	var asked sync.WaitGroup
	switch {
	case kill && victim == coordinator:
		if f.ask(ctx, coordinator, fmt.Sprintf("/commit?kill=1&at=%d", at)) != "" {
			at = 0 // all transactions ended before
		}
	case kill:
		f.ask(ctx, victim, fmt.Sprintf("/die?at=%d", at))
		asked.Go(func() { f.ask(ctx, coordinator, "/commit?at=1000") })
		f.running[victim].Wait() //nolint:errcheck // it killed itself
	default:
		f.ask(ctx, coordinator, fmt.Sprintf("/commit?at=%d", at))
		f.split(victim)
	}
	if kill {
		f.kill(victim)
	}
	f.settled(left...)
	f.heal()
	if kill {
		f.start(victim)
	}
	asked.Wait()
	f.settled(f.names...)
	if victim != coordinator {
		return nil
	}
	return left
}

// decision is a line of an agent's file.
type decision struct {
	id, outcome string
	election    int           // the last that the agent has joined
	took        time.Duration // since this process of the agent knew the transaction
}

func (f *fleet) decisions(name string) (all []decision) {
	text, err := os.ReadFile(f.stations[name].Decisions)
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var d decision
		var ms int
		if _, err := fmt.Sscan(string(line), &d.id, &d.outcome, &d.election, &ms); err != nil {
			f.t.Fatalf("%s: %v", line, err)
		}
		d.took = time.Duration(ms) * time.Millisecond
		all = append(all, d)
	}
	return all
}

// outcomes returns what each transaction came to, and the transactions about which agents do not agree.
func (f *fleet) outcomes() (all map[string]string, split []string) {
	all = make(map[string]string)
	for _, name := range f.names {
		for _, d := range f.decisions(name) {
			if was := all[d.id]; was != "" && was != d.outcome {
				split = append(split, d.id)
			}
			all[d.id] = d.outcome
		}
	}
	return all, split
}

// books returns the moves in each bank, and its money.
func (f *fleet) books() (moves [2][]string, money [2]int) {
	f.t.Helper()
	for i, db := range f.dbs {
		table := f.stations[f.names[i]].Table
		if err := db.QueryRow("SELECT SUM(n) FROM " + table).Scan(&money[i]); err != nil {
			f.t.Fatal(err)
		}
		rows, err := db.Query("SELECT id FROM " + table + "_moves")
		if err != nil {
			f.t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				f.t.Fatal(err)
			}
			moves[i] = append(moves[i], id)
		}
		slices.Sort(moves[i])
	}
	return moves, money
}

// audit fails the test unless the agents agree, and both banks have what they agreed on.
func (f *fleet) audit() {
	f.t.Helper()
	all, split := f.outcomes()
	if len(split) > 0 {
		f.t.Errorf("agents do not agree about %v", split)
	}
	maps.DeleteFunc(all, func(_, outcome string) bool { return outcome != "committed" })
	want := slices.Sorted(maps.Keys(all))
	var moves [2][]string
	var money [2]int
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // handlers may have to finish
		moves, money = f.books()
		if slices.Equal(moves[0], want) && slices.Equal(moves[1], want) || time.Now().After(deadline) {
			break
		}
	}
	if !slices.Equal(moves[0], want) || !slices.Equal(moves[1], want) || money != [2]int{accounts*balance - len(want), accounts*balance + len(want)} {
		f.t.Errorf("%d transactions are committed, and the banks have %d and %d of them, and %v", len(want), len(moves[0]), len(moves[1]), money)
	}
	f.t.Logf("%d transactions committed", len(want))
	if len(want) == 0 {
		f.t.Error("no transaction was committed")
	}
}

// TestProcesses kills agents and cuts them off, at any record, again and again. No decision splits, and the books balance. Without their
// coordinator the others decide within three time-outs: an agent calls three elections at most. In the long form the agents' clocks say
// so too, in all rounds in which the machine was not busy. [TestCoordinatorDies] measures that time exactly.
func TestProcesses(t *testing.T) {
	rounds, fleets, timeout := 15, 2, 500*time.Millisecond
	soak := os.Getenv("PAWL_TEST_SOAK") != ""
	if soak {
		rounds, timeout = 500, time.Second
	}
	servers := theServers(t)
	late := measureLateness(t)
	for number := range fleets {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, number, servers, timeout, false)
			f.settled(f.names...)
			var longest time.Duration
			judged := 0
			for i := range rounds {
				known := make(map[string]int)
				for _, name := range f.names {
					known[name] = len(f.decisions(name))
				}
				was := late()
				left := f.round(i%2 == 0)
				busy := late() - was
				for _, name := range left {
					for _, d := range f.decisions(name)[known[name]:] {
						longest = max(longest, d.took)
						judged++
						if d.election > 1+3*len(f.names) || soak && d.took > 3*timeout && busy < timeout/10 {
							t.Errorf("round %d: %s decided %s in election %d, after %v", i, name, d.id, d.election, d.took)
						}
					}
				}
			}
			f.audit()
			if t.Logf("%d rounds; %d decisions without a coordinator, after %v at most; in all, the machine was late by %v", rounds, judged, longest, late()); judged == 0 {
				t.Error("no coordinator died")
			}
		})
	}
	t.Run("classic", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, fleets, servers, timeout/2, true)
		f.settled(f.names...)
		for i := range 200 {
			f.round(false)
			if _, split := f.outcomes(); len(split) > 0 {
				t.Logf("round %d splits %d transactions", i, len(split))
				return
			}
		}
		t.Error("the agents of the textbooks are not found wrong")
	})
}

// theServers returns a PostgreSQL that prepares transactions, and a MariaDB.
func theServers(t *testing.T) [2]string {
	return [2]string{testservers.PostgresURL(testservers.Postgres(t, "-c", "max_prepared_transactions=100").Addr),
		testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr).FormatDSN()}
}

// measureLateness returns a function that tells for how long this machine has been late in all.
func measureLateness(t *testing.T) func() time.Duration {
	var mu sync.Mutex
	var late time.Duration
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		const pause = 10 * time.Millisecond
		for last := time.Now(); ; {
			select {
			case <-time.After(pause):
			case <-done:
				return
			}
			now := time.Now()
			mu.Lock()
			late += max(now.Sub(last)-2*pause, 0)
			mu.Unlock()
			last = now
		}
	})
	t.Cleanup(func() { close(done); watching.Wait() })
	return func() time.Duration { mu.Lock(); defer mu.Unlock(); return late }
}
