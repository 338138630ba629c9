//go:build unix

package cli

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

// agents are three agents, each in a process of its own: two databases and a witness.
type agents struct {
	t         *testing.T
	ca        *testservers.CA // nil: without certificates
	table     string
	db        *sql.DB
	urls      map[string]string
	files     map[string]string // their logs
	processes map[string]*process
}

var agentNames = []string{"bank", "stock", "witness"}

func newAgents(t *testing.T) *agents {
	t.Helper()
	maria := testservers.SharedMariaDB(t).Addr
	a := &agents{t: t, ca: testservers.NewCA(t), table: fmt.Sprintf("agents_%d", time.Now().UnixNano()), db: testservers.MariaDBPool(t, maria),
		urls: make(map[string]string), files: make(map[string]string), processes: make(map[string]*process)}
	for _, name := range agentNames {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		a.urls[name] = "https://" + listener.Addr().String() + "/"
		a.files[name] = "sqlite:" + filepath.Join(t.TempDir(), name+".db")
	}
	for _, name := range agentNames[:2] {
		for _, query := range []string{"CREATE TABLE %s_%s (id bigint PRIMARY KEY, n bigint NOT NULL) ENGINE=InnoDB", "INSERT INTO %s_%s VALUES (1, 10)"} {
			if _, err := a.db.ExecContext(t.Context(), fmt.Sprintf(query, a.table, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return a
}

// start starts an agent, whose log exists.
func (a *agents) start(name string) {
	a.t.Helper()
	args := []string{"tx", "agent", "--db", a.files[name], "--name", name, "--listen", strings.Trim(a.urls[name], "htps:/"), "--timeout", "3s"}
	if a.ca != nil {
		certificate := a.ca.Issue(name)
		args = append(args, "--tls-cert", certificate.CertFile, "--tls-key", certificate.KeyFile, "--tls-ca", a.ca.File)
	}
	for _, other := range agentNames {
		if other != name {
			args = append(args, "--peer", other+"="+a.urls[other])
		}
	}
	if name != "witness" {
		args = append(args, "--resource", name+"=mysql://root@"+testservers.SharedMariaDB(a.t).Addr+"/pawl")
	}
	a.processes[name] = start(a.t, command(a.t, "memory:", args...))
	if line := a.processes[name].line(); line+"/" != a.urls[name] && !strings.HasSuffix(a.urls[name], ":0/") {
		a.t.Fatal(line)
	}
}

// post sends a request as the owner of a certificate.
func (a *agents) post(as, url, body string) (status int, text string) {
	a.t.Helper()
	transport := &http.Transport{TLSClientConfig: a.ca.Client(a.ca.Issue(as)), DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport, Timeout: patience}).Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return response.StatusCode, string(all)
}

// commit posts a transaction to an agent. On a busy machine the other agents may elect to abort before that agent decides. Then
// commit posts the transaction anew.
func (a *agents) commit(agent, body string) (status int, text string) {
	a.t.Helper()
	for range 5 {
		if status, text = a.post("program", a.urls[agent]+"commit", body); !strings.Contains(text, "elected to abort") {
			break
		}
	}
	return status, text
}

// balances are the numbers in both databases.
func (a *agents) balances() (all [2]int) {
	a.t.Helper()
	for i, name := range agentNames[:2] {
		if err := a.db.QueryRowContext(a.t.Context(), fmt.Sprintf("SELECT n FROM %s_%s", a.table, name)).Scan(&all[i]); err != nil {
			a.t.Fatal(err)
		}
	}
	return all
}

// transfer is the body of a request that moves n.
func (a *agents) transfer(n int) string {
	return fmt.Sprintf(`{"bank": [{"sql": "UPDATE %[1]s_bank SET n = n - ? WHERE id = ? AND n >= ?", "args": [%[2]d, 1, %[2]d], "rows": 1}],
		"stock": [{"sql": "UPDATE %[1]s_stock SET n = n + ?", "args": [%[2]d]}]}`, a.table, n)
}

// TestTx_agent: agents commit for programs, know one another by certificates, and show an operator what they wait for.
func TestTx_agent(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	_, stderr := want(t, 64, "memory:", "tx", "ls", "--agent", "--db", a.files["bank"])
	complaint(t, stderr, "(try: pawl tx migrate)")
	for _, name := range agentNames {
		if stdout, _ := want(t, 0, "memory:", "tx", "migrate", "--agent", "--db", a.files[name]); stdout != "the log of the agent is ready\n" {
			t.Error(stdout)
		}
		a.start(name)
	}
	status, text := a.commit("stock", a.transfer(4))
	if status != 200 || !strings.Contains(text, `"outcome":"committed"`) || a.balances() != [2]int{6, 14} {
		t.Fatal(status, text, a.balances())
	}
	status, text = a.commit("bank", a.transfer(7))
	if status != 409 || !strings.Contains(text, "statement 1 changed 0 rows, not 1") || a.balances() != [2]int{6, 14} {
		t.Error(status, text, a.balances())
	}
	status, text = a.commit("stock", strings.Replace(a.transfer(1), "[1]", "[0.1]", 1))
	if status != 409 || !strings.Contains(text, "argument 1 is the number 0.1") || a.balances() != [2]int{6, 14} {
		t.Error(status, text, a.balances())
	}
	for _, body := range []string{"[]", `{"bank": 1}`, `{"bank": [{"args": [1]}]}`, `{"bank": [{"sql": "SELECT ?", "args": [[1]]}]}`, `{"shop": []}`,
		a.transfer(1) + a.transfer(1), a.transfer(1) + "]", a.transfer(1) + "x", `{"bank": [], "bank": []}`, `{"bank": null}`, "null", "", `{"bank": []`, `{"bank"}`, `{"bank": [{"sql": "SELECT 1"}] "stock": []}`} {
		if status, text := a.post("program", a.urls["bank"]+"commit", body); status != 400 || !strings.Contains(text, `"outcome":"invalid"`) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	status, text = a.post("program", a.urls["stock"], `{"version": 1, "from": "bank", "log": 7, "group": "quorum bank stock witness"}`)
	if status != 403 || !strings.Contains(text, "the sender is not agent bank") {
		t.Error(status, text)
	}
	a.operate()
}

// operate: an operator sees a transaction that could not commit, and may not decide otherwise.
func (a *agents) operate() {
	t := a.t
	a.processes["witness"].cmd.Process.Kill() //nolint:errcheck // the answer tells
	status, text := a.commit("bank", a.transfer(1))
	var got struct{ ID, Outcome, Error string }
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != 409 || !strings.Contains(got.Error, "no vote in time of") || !strings.Contains(got.Error, "witness") {
		t.Error(status, text, err)
	}
	log := []string{"--agent", "--db", a.files["bank"], "--resource", "bank=mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl"}
	if stdout, _ := want(t, 0, "memory:", append([]string{"tx", "ls"}, log...)...); !regexp.MustCompile(got.ID + " +aborted +yes").MatchString(stdout) {
		t.Error(stdout)
	}
	stdout, _ := want(t, 0, "memory:", append([]string{"tx", "show", got.ID, "--json"}, log...)...)
	var v agentTransactionView
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || v.State != "aborted" || v.Group != "quorum bank stock witness" || v.Decision != nil {
		t.Error(stdout, err)
	}
	_, stderr := want(t, 64, "memory:", append([]string{"tx", "resolve", got.ID, "--commit", "--reason", "test"}, log...)...)
	complaint(t, stderr, "is aborted at this agent")
	if stdout, _ := want(t, 0, "memory:", append([]string{"tx", "resolve", got.ID, "--abort", "--reason", "as it is"}, log...)...); !strings.Contains(stdout, "to be rolled back") {
		t.Error(stdout)
	}
	if stdout, _ := want(t, 0, "memory:", append([]string{"tx", "show", got.ID}, log...)...); !strings.Contains(stdout, "abort, at ") || !strings.Contains(stdout, "as it is") {
		t.Error(stdout)
	}
	if stdout, _ := want(t, 0, "memory:", append([]string{"tx", "ls", "--resolved"}, log...)...); !regexp.MustCompile(got.ID + " +abort ").MatchString(stdout) {
		t.Error(stdout)
	}
	_, stderr = want(t, 64, "memory:", append([]string{"tx", "show", "bank-1-1"}, log...)...)
	complaint(t, stderr, "no such transaction")
	a.urls["stock"] = "https://127.0.0.1:0/"
	first := a.processes["stock"]
	a.start("stock") // the same log
	if code := first.wait(); code != 64 || !strings.Contains(first.errors(), "another process has the log of agent stock") {
		t.Errorf("%d: %s", code, first.errors())
	}
	if stdout, _ := want(t, 0, "memory:", "tx", "trust", "stock", "--db", a.files["bank"]); stdout != "the next log of stock is accepted\n" {
		t.Error(stdout)
	}
	_, stderr = want(t, 64, "memory:", "tx", "trust", "bank", "--db", a.files["bank"])
	complaint(t, stderr, "knows no peer")
}

// TestTx_agent_usage: wrong settings are refused.
func TestTx_agent_usage(t *testing.T) {
	t.Parallel()
	file := "sqlite:" + filepath.Join(t.TempDir(), "log.db")
	want(t, 0, "memory:", "tx", "migrate", "--agent", "--db", file)
	peers := []string{"--peer", "b=http://127.0.0.1:1/", "--peer", "c=http://127.0.0.1:1/"}
	for says, args := range map[string][]string{
		"NAME=URL is allowed":  {"--peer", "b"},
		"listens on 127.0.0.1": {"--listen", "0.0.0.0:0"},
		"HOST:PORT is allowed": {"--listen", "7654"},
		"are given together":   {"--tls-ca", "ca.pem"},
		"3 to 7 are allowed":   {"--peer", "b=http://127.0.0.1:1/"},
		"the name of an agent": append([]string{"--name", "a-b"}, peers...),
		"at most":              {"--resource", "a=mysql://x/y", "--resource", "b=mysql://x/y"},
		"--timeout is 1h0m0s: 50ms to 1m0s are allowed": append([]string{"--timeout", "1h"}, peers...),
		"--timeout is 0s: ":                             append([]string{"--timeout", "0"}, peers...),
		"SQLite prepares no trans":                      append([]string{"--resource", "a=" + file}, peers...),
		"--peer b is given twice":                       {"--peer", "b=http://h/?token=hidden", "--peer", "b=http://user:hidden@h/"},
		"--peer: NAME=URL is allowed":                   {"--peer", "http://user:hidden@h/?token=hidden"},
		"--resource: NAME=URL or":                       {"--resource", "postgres://user:hidden@h/db"},
		"or NAME is allowed":                            {"--resource", "postgres://user:hidden@h/db?connections=2"},
	} {
		_, stderr := want(t, 64, "memory:", append([]string{"tx", "agent", "--db", file, "--name", "a", "--listen", "127.0.0.1:0"}, args...)...)
		complaint(t, stderr, says)
		if strings.Contains(stderr, "hidden") {
			t.Errorf("a secret of a URL is shown: %s", stderr)
		}
	}
}
