package threephase_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase"
	"github.com/pawl-go/pawl/dtx/threephase/internal/protocol"
)

// TestOldMessages: all messages of transactions that are over come again, in any order, and change nothing.
func TestOldMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		for _, name := range g.names {
			if _, err := g.agents[name].Commit(t.Context(), work); err != nil {
				t.Error(err)
			}
		}
		if _, err := g.agents["bank"].Commit(t.Context(), map[string][]byte{"bank": []byte("take"), "stock": []byte("no")}); !errors.Is(err, dtx.ErrAborted) {
			t.Error(err)
		}
		g.until("all is forgotten", g.quiet)
		g.kill("stock")
		g.start("stock") // which knows of old transactions by its log only
		g.net.mu.Lock()
		sent := g.net.sent
		g.net.mu.Unlock()
		for i := range sent {
			m := sent[len(sent)-1-i]
			for _, again := range []sentBefore{m, sent[i]} {
				if w := g.post(again.to, string(again.body)); w.Code != http.StatusOK {
					t.Errorf("%s: %d %s", again.body, w.Code, w.Body)
				}
			}
		}
		if !g.quiet() {
			t.Error("an old message began a transaction")
		}
	})
}

// post gives a message to an agent.
func (g *group) post(to, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	g.agents[to].ServeHTTP(w, httptest.NewRequestWithContext(g.t.Context(), http.MethodPost, "/", strings.NewReader(body)))
	return w
}

// TestForeignMessages: what no agent of the group can have sent is refused, and changes nothing.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		if _, err := g.agents["bank"].Commit(t.Context(), work); err != nil {
			t.Fatal(err)
		}
		g.net.mu.Lock()
		var can map[string]any
		for _, m := range g.net.sent {
			if m.to == "stock" && bytes.Contains(m.body, []byte(`"kind":3`)) {
				if err := json.Unmarshal(m.body, &can); err != nil {
					t.Fatal(err)
				}
			}
		}
		g.net.mu.Unlock()
		fresh := strings.TrimSuffix(can["id"].(string), "-1") + "-f"
		for name, c := range foreignMessages(fresh) {
			m := make(map[string]any)
			for key, value := range can {
				m[key] = value
			}
			m["id"] = fresh
			for key, value := range c.change {
				m[key] = value
			}
			body, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if w := g.post("stock", string(body)); w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
		}
		if w := g.post("stock", "{"); w.Code != 400 {
			t.Error(w.Code)
		}
		w := httptest.NewRecorder()
		if g.agents["stock"].ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil)); w.Code != 400 {
			t.Error(w.Code)
		}
		g.until("all is forgotten", g.quiet)
		if ids, _ := g.ledgers["stock"].Prepared(t.Context()); len(ids) > 0 {
			t.Error(ids)
		}
	})
}

// TestBrowserMessages: a message that a web page makes a browser send begins no work.
func TestBrowserMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		body := `{"version": 1, "from": "bank", "log": 7, "group": "quorum bank stock witness", "id": "bank-7-1", "kind": 3, "work": true}`
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Origin", "http://example.com")
		w := httptest.NewRecorder()
		if g.agents["stock"].ServeHTTP(w, r); w.Code != 403 || !strings.Contains(w.Body.String(), "a browser has sent") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if !g.quiet() {
			t.Error("the message began a transaction")
		}
	})
}

// foreign is a message with changes, and how it is refused.
type foreign struct {
	change map[string]any
	status int
	says   string
}

// foreignMessages are changes of a message from the bank to the stock about a new transaction of the bank.
func foreignMessages(fresh string) map[string]foreign {
	return map[string]foreign{
		"another version":             {map[string]any{"version": 2}, 403, "version 2"},
		"no agent":                    {map[string]any{"from": "shop"}, 403, `knows no agent \"shop\"`},
		"another group":               {map[string]any{"group": "quorum bank stock"}, 403, "is of the group"},
		"another mode":                {map[string]any{"group": "classic bank stock witness"}, 403, "is of the group"},
		"a new log":                   {map[string]any{"log": 77}, 403, "see Log.Trust"},
		"for an old log":              {map[string]any{"to": 78}, 403, "which is lost"},
		"no log":                      {map[string]any{"log": 0}, 400, "the log of agent bank is 0"},
		"no ID":                       {map[string]any{"id": "bank-1"}, 400, "no ID"},
		"a transaction of no agent":   {map[string]any{"id": "shop-1-1"}, 403, "of no agent"},
		"a transaction of an old log": {map[string]any{"id": "bank-1-1"}, 403, "does not have"},
		"a transaction of this agent": {map[string]any{"id": "stock-" + strings.Split(fresh, "-")[1] + "-9", "kind": 4}, 403, "has no transaction"},
		"an event":                    {map[string]any{"kind": 0}, 400, "cannot send"},
		"an unknown kind":             {map[string]any{"kind": 99}, 400, "cannot send"},
		"another agent's election":    {map[string]any{"kind": 8, "election": 2}, 400, "cannot send"},
		"no election":                 {map[string]any{"kind": 9}, 400, "cannot send"},
		"too large":                   {map[string]any{"payload": bytes.Repeat([]byte("x"), 2<<20)}, 400, "too large"},
	}
}

// TestLostLog: an agent whose log was replaced is refused until an operator trusts it. An operator decides the agent's prepared work.
func TestLostLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		result := make(chan error, 1)
		go func() { _, err := g.agents["bank"].Commit(t.Context(), work); result <- err }()
		prepared := func() (ids []threephase.ID) { ids, _ = g.ledgers["stock"].Prepared(t.Context()); return ids }
		for len(prepared()) == 0 {
			time.Sleep(time.Millisecond / 10)
		}
		g.kill("stock")
		err := <-result
		id := prepared()[0]
		g.startAnew("stock")
		g.until("the work is reported", func() bool { return len(g.agents["stock"].Status().Unknown) == 1 })
		all, listed := g.logs["stock"].Transactions(t.Context(), g.ledgers["stock"])
		if listed != nil || len(all) != 1 || all[0].ID != id || all[0].State != threephase.Unknown {
			t.Errorf("%+v, %v", all, listed)
		}
		if _, err := g.agents["stock"].Commit(t.Context(), work); !errors.Is(err, dtx.ErrAborted) {
			t.Error(err)
		}
		if err := g.agents["bank"].Status().Peers["stock"]; err == nil || !strings.Contains(err.Error(), "Log.Trust") {
			t.Error(err)
		}
		commit := !errors.Is(err, dtx.ErrAborted)
		if err := g.logs["stock"].Resolve(t.Context(), id, commit, "the bank says so"); err != nil {
			t.Error(err)
		}
		if err := g.logs["stock"].Resolve(t.Context(), id, !commit, "the bank says so"); !errors.Is(err, dtx.ErrDecided) {
			t.Error(err)
		}
		g.until("the operator is obeyed", func() bool { return len(prepared()) == 0 })
		for _, name := range []string{"bank", "witness"} {
			if err := g.logs[name].Trust(t.Context(), "stock"); err != nil {
				t.Error(err)
			}
			if err := g.logs[name].Trust(t.Context(), name); !errors.Is(err, pawl.ErrInvalid) {
				t.Error(err)
			}
		}
		if g.splits() > 0 {
			t.Error("split")
		}
		g.until("a transaction commits", func() bool { _, err := g.agents["stock"].Commit(t.Context(), work); return err == nil })
	})
}

// startAnew starts an agent with a new log.
func (g *group) startAnew(name string) {
	g.t.Helper()
	for _, query := range []string{"DELETE FROM pawl_3pc", "DELETE FROM pawl_3pc_agents"} {
		if _, err := g.dbs[name].Exec(query); err != nil {
			g.t.Fatal(err)
		}
	}
	if err := g.logs[name].Migrate(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
	g.start(name)
}

// TestLostVote: an agent has voted yes, and loses its log while the others commit. The others tell the decision until an operator has decided the
// agent's prepared work. Then all logs forget the transaction.
func TestLostVote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		result := make(chan error, 1)
		go func() { _, err := g.agents["bank"].Commit(t.Context(), work); result <- err }()
		bank := func() threephase.Transaction {
			all, err := g.logs["bank"].Transactions(t.Context(), nil)
			if err != nil || len(all) != 1 {
				return threephase.Transaction{}
			}
			return all[0]
		}
		for bank().State != threephase.PreCommitted {
			time.Sleep(time.Millisecond / 10)
		}
		g.net.split([]string{"stock"})
		if err := <-result; !errors.Is(err, dtx.ErrPending) || bank().State != threephase.Committed {
			t.Errorf("%v, %+v", err, bank())
		}
		g.kill("stock")
		g.net.split(nil)
		g.startAnew("stock")
		for _, name := range []string{"bank", "witness"} {
			if err := g.logs[name].Trust(t.Context(), "stock"); err != nil {
				t.Error(err)
			}
		}
		told := func() (n int) {
			g.net.mu.Lock()
			defer g.net.mu.Unlock()
			for _, s := range g.net.sent {
				if s.to == "stock" && strings.Contains(string(s.body), `"kind":10`) { // Commit
					n++
				}
			}
			return n
		}
		before := told()
		g.until("the decision is told again", func() bool { return told() >= before+3 })
		if unknown := g.agents["stock"].Status().Unknown; len(unknown) != 1 || bank().State != threephase.Committed {
			t.Errorf("%v, %+v", unknown, bank())
		}
		if err := g.logs["stock"].Resolve(t.Context(), bank().ID, true, "the bank says so"); err != nil {
			t.Error(err)
		}
		g.until("all is forgotten", g.quiet)
		if g.splits() > 0 || g.ledgers["stock"].commits() != 1 {
			t.Error("split")
		}
	})
}

// TestResolve: agents that have lost their majority for ever obey an operator.
func TestResolve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		result := make(chan error, 1)
		go func() { _, err := g.agents["bank"].Commit(t.Context(), work); result <- err }()
		var ids []threephase.ID
		for len(ids) == 0 {
			time.Sleep(time.Millisecond / 10)
			ids, _ = g.ledgers["stock"].Prepared(t.Context())
		}
		g.net.split([]string{"stock"})
		<-result
		log := g.logs["stock"]
		for _, reason := range []string{"", strings.Repeat("x", 501)} {
			if err := log.Resolve(t.Context(), ids[0], false, reason); !errors.Is(err, pawl.ErrInvalid) {
				t.Error(err)
			}
		}
		if err := log.Resolve(t.Context(), ids[0], false, "the others burned down"); err != nil {
			t.Error(err)
		}
		g.until("the operator is obeyed", func() bool { is, _ := g.ledgers["stock"].Prepared(t.Context()); return len(is) == 0 })
		if all, err := log.Heuristics(t.Context()); err != nil || all[ids[0]] == nil || all[ids[0]].Reason != "the others burned down" {
			t.Error(all, err)
		}
		if err := log.Resolve(t.Context(), ids[0], true, "no"); !errors.Is(err, dtx.ErrDecided) {
			t.Error(err)
		}
	})
}

// TestTakeOver: a second process that takes the log ends the first. The first names no transaction of which its log knows nothing, because the second
// gives the number again.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		<-time.After(250 * time.Millisecond) // of the bubble: the agents have heard of one another, and write nothing
		first := g.agents["bank"]
		g.start("bank")
		var named *threephase.Error
		unknown, err := first.Commit(t.Context(), work)
		if !errors.Is(err, dtx.ErrAborted) || errors.Is(err, dtx.ErrInDoubt) || !errors.Is(err, threephase.ErrReplaced) || errors.As(err, &named) || unknown != (threephase.ID{}) {
			t.Errorf("%v, %v", unknown, err)
		}
		<-first.Done()
		if err := first.Status().Err; !errors.Is(err, threephase.ErrReplaced) {
			t.Error(err)
		}
		if err := first.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if len(g.ledgers["bank"].asked) > 0 {
			t.Error("the handler was asked")
		}
		id, err := g.agents["bank"].Commit(t.Context(), work)
		if err != nil {
			t.Error(err)
		}
		if id == unknown {
			t.Errorf("%v is given twice", id)
		}
	})
}

// TestTakenOverCommit: a process whose log another process has taken hears of a commit on which the other has voted. The first must not say that the
// commit is done there: the coordinator would forget the transaction, and the second process would wait for ever.
func TestTakenOverCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		<-time.After(250 * time.Millisecond) // as above
		first, strays := g.agents["witness"], 0
		g.start("witness")
		g.net.mu.Lock()
		g.net.route = func(to string, body []byte) http.Handler {
			if to == "witness" && strays == 0 && strings.Contains(string(body), fmt.Sprintf(`"kind":%d`, protocol.Commit)) {
				strays++
				return first
			}
			return nil
		}
		g.net.mu.Unlock()
		if _, err := g.agents["bank"].Commit(t.Context(), work); err != nil && !errors.Is(err, dtx.ErrPending) {
			t.Error(err)
		}
		<-time.After(100 * time.Millisecond) // of the bubble: the first process has answered
		g.net.split([]string{"witness"})
		<-time.After(10 * time.Second) // of the bubble: the others forget the transaction if all agents have finished
		g.net.split(nil)
		g.until("all is forgotten", g.quiet)
		if strays != 1 {
			t.Errorf("%d messages went to the first process", strays)
		}
		if err := first.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestFullLog: a transaction that the log of its coordinator does not take is aborted. The transaction has no ID, because a restart gives the number again. An
// agent whose log refuses a vote votes when the coordinator asks again.
func TestFullLog(t *testing.T) {
	t.Parallel()
	for _, coordinator := range []string{"bank", "witness"} {
		synctest.Test(t, func(t *testing.T) {
			g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
			defer g.close()
			frees := g.fill(coordinator)
			begin := time.Now()
			id, err := g.agents[coordinator].Commit(t.Context(), work)
			if took := time.Since(begin); !errors.Is(err, dtx.ErrAborted) || !strings.Contains(err.Error(), "no room") || id != (threephase.ID{}) || took > 2*time.Second {
				t.Errorf("%v, %v after %v", id, err, took)
			}
			g.kill(coordinator)
			frees()
			g.start(coordinator)
			if _, err := g.agents[coordinator].Commit(t.Context(), work); err != nil {
				t.Error(err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		witness, frees := g.agents["witness"], sync.OnceFunc(g.fill("witness"))
		var refused atomic.Int32
		g.net.mu.Lock()
		g.net.agents["witness"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := httptest.NewRecorder()
			if witness.ServeHTTP(answer, r); strings.Contains(answer.Body.String(), "no room") {
				refused.Add(1)
				frees()
			}
			w.WriteHeader(answer.Code)
			w.Write(answer.Body.Bytes()) //nolint:errcheck // a recorder
		})
		g.net.mu.Unlock()
		if _, err := g.agents["bank"].Commit(t.Context(), work); err != nil || refused.Load() == 0 {
			t.Errorf("%v, and %d votes were not stored", err, refused.Load())
		}
	})
}

// fill makes the log of an agent refuse new transactions, until frees is called.
func (g *group) fill(name string) (frees func()) {
	g.t.Helper()
	exec := func(query string) {
		if _, err := g.dbs[name].Exec(query); err != nil {
			g.t.Error(err)
		}
	}
	exec("CREATE TRIGGER full BEFORE INSERT ON pawl_3pc BEGIN SELECT RAISE(ABORT, 'no room'); END")
	return func() { exec("DROP TRIGGER full") }
}

// TestNew: wrong settings are refused.
func TestNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, threephase.Options{Timeout: time.Second}, "bank", "stock", "witness")
		defer g.close()
		peers := map[string]string{"a": "http://a/", "b": "http://b/"}
		for says, err := range map[string]error{
			"2 agents":       second(threephase.New(t.Context(), g.logs["bank"], "bank", map[string]string{"a": "http://a/"}, nil, nil)),
			"its own peer":   second(threephase.New(t.Context(), g.logs["bank"], "a", peers, nil, nil)),
			"the name of":    second(threephase.New(t.Context(), g.logs["bank"], "bank-1", peers, nil, nil)),
			"the URL of":     second(threephase.New(t.Context(), g.logs["bank"], "bank", map[string]string{"a": "a:80", "b": "http://b/"}, nil, nil)),
			"50ms to 1m":     second(threephase.New(t.Context(), g.logs["bank"], "bank", peers, nil, &threephase.Options{Timeout: time.Hour})),
			"Quorum and":     second(threephase.New(t.Context(), g.logs["bank"], "bank", peers, nil, &threephase.Options{Mode: 7})),
			"is nil":         second(threephase.NewLog(dialect.SQLite, nil, nil)),
			"LogOptions":     second(threephase.NewLog(dialect.SQLite, g.dbs["bank"], &threephase.LogOptions{Table: "a b"})),
			"of agent":       second(threephase.New(t.Context(), g.logs["bank"], "shop", peers, nil, nil)),
			"the resource":   second(threephase.Database(nil, nil)),
			"no ID":          second(threephase.ParseID("bank-01-1")),
			"no ID of a tra": second(threephase.ParseID("bank-1-0")),
		} {
			if err == nil || !strings.Contains(err.Error(), says) || !errors.Is(err, pawl.ErrInvalid) && !errors.Is(err, pawl.ErrMismatch) {
				t.Errorf("%s: %v", says, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }
