package threephase_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"
	_ "github.com/ncruces/go-sqlite3/vfs/memdb"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/threephase"
)

// network carries the messages of agents in one process. A message can be lost, late and repeated, and its answer can be lost.
type network struct {
	mu     sync.Mutex
	agents map[string]http.Handler
	cut    map[[2]string]bool
	faults bool                                      // answers are lost, and messages repeated
	sent   []sentBefore                              // all messages
	flying map[string]int                            // messages without an answer, by receiver
	after  func(from string)                         // called before each message
	route  func(to string, body []byte) http.Handler // nil: the agent
	late   sync.WaitGroup
}

type sentBefore struct {
	to   string
	body []byte
}

// link is the way from one agent.
type link struct {
	*network
	from string
	dead chan struct{} // closed when the agent is killed
}

func (n *network) agent(from, to string) (h http.Handler, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.agents[to], n.cut[[2]string{from, to}]
}

// split cuts the network between two sides. An empty side heals it.
func (n *network) split(side []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	for a := range n.agents {
		for b := range n.agents {
			n.cut[[2]string{a, b}] = len(side) > 0 && slices.Contains(side, a) != slices.Contains(side, b)
		}
	}
}

func (l link) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	to := r.URL.Host
	l.mu.Lock()
	l.sent = append(l.sent, sentBefore{to, body})
	l.flying[to]++
	faults, after := l.faults, l.after
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.flying[to]--
	}()
	if after != nil {
		after(l.from)
	}
	if err := l.pass(r.Context(), l.from, to); err != nil {
		return nil, err
	}
	if faults && rand.IntN(4) == 0 {
		again := rand.N(5 * time.Second)
		l.late.Go(func() {
			<-time.After(again)
			l.call(context.Background(), to, body) //nolint:errcheck // nobody waits
		})
	}
	response, err := l.call(r.Context(), to, body)
	if err == nil && faults && rand.IntN(8) == 0 {
		err = errors.New("the answer is lost")
	}
	if err == nil {
		err = l.pass(r.Context(), to, l.from)
	}
	if err != nil {
		return nil, err
	}
	return response, nil
}

// pass takes a moment, or for ever if the way is cut.
func (l link) pass(ctx context.Context, from, to string) error {
	travels := time.NewTimer(rand.N(4 * time.Millisecond))
	defer travels.Stop()
	select {
	case <-travels.C:
	case <-l.dead:
		return errors.New("killed")
	}
	if _, lost := l.agent(from, to); lost {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (l link) call(ctx context.Context, to string, body []byte) (*http.Response, error) {
	h, _ := l.agent("", to)
	l.mu.Lock()
	if l.route != nil {
		h = cmp.Or(l.route(to, body), h)
	}
	l.mu.Unlock()
	if h == nil {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body)))
	return w.Result(), nil
}

// ledger is a handler that keeps its work over crashes of its agent.
type ledger struct {
	t         *testing.T
	mu        sync.Mutex
	faults    bool
	asked     map[threephase.ID]bool
	prepared  map[threephase.ID]bool
	committed map[threephase.ID]bool
	late      sync.WaitGroup
}

func (l *ledger) Prepare(ctx context.Context, id threephase.ID, payload []byte) error {
	l.mu.Lock()
	twice := l.asked[id]
	l.asked[id] = true
	faults := l.faults
	l.mu.Unlock()
	if twice {
		l.t.Errorf("%v is prepared twice", id)
	}
	if string(payload) == "no" {
		return errors.New("the balance is too small")
	}
	works := time.NewTimer(rand.N(10 * time.Millisecond))
	defer works.Stop()
	select {
	case <-works.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if faults && rand.IntN(6) == 0 { // the connection is lost, and the database prepares all the same
		after := rand.N(time.Second)
		l.late.Go(func() { <-time.After(after); l.set(l.prepared, id) })
		return errors.New("connection lost")
	}
	l.set(l.prepared, id)
	return nil
}

// has reports whether a transaction is committed here. An agent may commit once more what it has finished.
func (l *ledger) has(id threephase.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.committed[id]
}

// commits returns how many transactions are committed here.
func (l *ledger) commits() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.committed)
}

func (l *ledger) set(m map[threephase.ID]bool, id threephase.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m[id] = true
}

func (l *ledger) Commit(_ context.Context, id threephase.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults && rand.IntN(4) == 0 {
		return errors.New("the database is away")
	}
	if !l.prepared[id] && !l.committed[id] {
		l.t.Errorf("%v is committed and was not prepared", id)
	}
	delete(l.prepared, id)
	l.committed[id] = true
	return nil
}

func (l *ledger) Abort(_ context.Context, id threephase.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.committed[id] {
		l.t.Errorf("%v is aborted and was committed", id)
	}
	delete(l.prepared, id)
	return nil
}

func (l *ledger) Prepared(context.Context) (all []threephase.ID, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.prepared {
		all = append(all, id)
	}
	return all, nil
}

// group is agents with a network. The agents bank and stock have ledgers; the others are witnesses.
type group struct {
	t       *testing.T
	names   []string
	opts    threephase.Options
	net     *network
	dbs     map[string]*sql.DB
	logs    map[string]*threephase.Log
	ledgers map[string]*ledger
	agents  map[string]*threephase.Agent
	dead    map[string]chan struct{}
	keepers []*sql.Conn
}

// place is a database for a log.
type place struct {
	dialect dialect.Dialect
	db      *sql.DB
}

func newGroup(t *testing.T, opts threephase.Options, names ...string) *group {
	t.Helper()
	places := make(map[string]place)
	var keepers []*sql.Conn
	for _, name := range names {
		db, err := sql.Open("sqlite3", fmt.Sprintf("file:/%s-%d?vfs=memdb", name, rand.Uint64()))
		if err != nil {
			t.Fatal(err)
		}
		db.SetMaxOpenConns(2)
		keeper, err := db.Conn(t.Context()) // the file is gone with its last connection, and a canceled call closes one
		if err != nil {
			t.Fatal(err)
		}
		keepers = append(keepers, keeper)
		places[name] = place{dialect.SQLite, db}
	}
	g := newGroupIn(t, opts, places, "", names...)
	g.keepers = keepers
	return g
}

// newGroupIn starts agents whose logs are in these databases.
func newGroupIn(t *testing.T, opts threephase.Options, places map[string]place, table string, names ...string) *group {
	t.Helper()
	g := &group{t: t, names: names, opts: opts, net: &network{agents: make(map[string]http.Handler), cut: make(map[[2]string]bool), flying: make(map[string]int)}, dbs: make(map[string]*sql.DB),
		logs: make(map[string]*threephase.Log), ledgers: make(map[string]*ledger), agents: make(map[string]*threephase.Agent), dead: make(map[string]chan struct{})}
	for _, name := range names {
		g.dbs[name] = places[name].db
		log, err := threephase.NewLog(places[name].dialect, places[name].db, &threephase.LogOptions{Table: table})
		if err == nil {
			err = log.Migrate(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		g.logs[name] = log
		if name == "bank" || name == "stock" {
			g.ledgers[name] = &ledger{t: t, asked: make(map[threephase.ID]bool), prepared: make(map[threephase.ID]bool), committed: make(map[threephase.ID]bool)}
		}
		g.start(name)
	}
	return g
}

func (g *group) peers(name string) map[string]string {
	peers := make(map[string]string)
	for _, other := range g.names {
		if other != name {
			peers[other] = "http://" + other + "/?token=hidden"
		}
	}
	return peers
}

// start starts an agent, or starts it again after kill.
func (g *group) start(name string) {
	g.t.Helper()
	g.dead[name] = make(chan struct{})
	opts := g.opts
	opts.Client = &http.Client{Transport: link{g.net, name, g.dead[name]}}
	var handler threephase.Handler
	if l := g.ledgers[name]; l != nil {
		handler = l
	}
	a, err := threephase.New(g.t.Context(), g.logs[name], name, g.peers(name), handler, &opts)
	if err != nil {
		g.t.Fatal(err)
	}
	g.agents[name] = a
	g.net.mu.Lock()
	defer g.net.mu.Unlock()
	g.net.agents[name] = a
}

// kill ends an agent. No message leaves it any more.
func (g *group) kill(name string) {
	g.t.Helper()
	g.net.mu.Lock()
	g.net.agents[name] = nil
	g.net.mu.Unlock()
	close(g.dead[name])
	if err := g.agents[name].Close(context.Background()); err != nil {
		g.t.Error(err)
	}
	g.agents[name] = nil
}

// close ends all agents.
func (g *group) close() {
	for _, l := range g.ledgers {
		l.late.Wait()
	}
	g.net.late.Wait()
	for name, a := range g.agents {
		if a != nil {
			g.kill(name)
		}
	}
	for _, keeper := range g.keepers {
		keeper.Close() //nolint:errcheck // nothing is lost
	}
	for _, db := range g.dbs {
		db.Close() //nolint:errcheck // nothing is lost
	}
}

// until waits until a condition holds.
func (g *group) until(what string, holds func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); !holds(); time.Sleep(250 * time.Millisecond) {
		if time.Now().After(deadline) {
			for name := range g.logs {
				all, err := g.logs[name].Transactions(g.t.Context(), nil)
				g.t.Logf("%s: %+v, %v, %+v", name, all, err, g.agents[name].Status())
			}
			g.t.Fatalf("never: %s", what)
		}
	}
}

// quiet reports whether nothing is prepared, and all logs have forgotten all.
func (g *group) quiet() bool {
	for name, log := range g.logs {
		all, err := log.Transactions(g.t.Context(), nil)
		if err != nil {
			g.t.Fatal(err)
		}
		if len(all) > 0 {
			return false
		}
		if l := g.ledgers[name]; l != nil {
			if ids, _ := l.Prepared(context.Background()); len(ids) > 0 {
				return false
			}
		}
	}
	return true
}

// splits returns how many transactions one ledger has committed and the other has not.
func (g *group) splits() (n int) {
	bank, stock := g.ledgers["bank"], g.ledgers["stock"]
	for _, l := range []*ledger{bank, stock} {
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	for id := range bank.committed {
		if !stock.committed[id] {
			n++
		}
	}
	for id := range stock.committed {
		if !bank.committed[id] {
			n++
		}
	}
	return n
}

var work = map[string][]byte{"bank": []byte("take"), "stock": []byte("put")}
