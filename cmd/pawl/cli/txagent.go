package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase"
	"github.com/pawl-go/pawl/engine/open"
)

const txAgentHelp = `Run an agent of three-phase commit, until INT, TERM, HUP or QUIT. A group has 3 to 7 agents. Each agent has a log of its own in --db, such as a
file of SQLite, and knows all others by --peer. With one --resource the agent executes statements in that database. Without one the
agent is a witness. "pawl tx migrate --agent" makes the tables of the log.

A program of any language commits by a request to any agent:

  POST /commit    {"bank": [{"sql": "UPDATE accounts SET n = n - $1 WHERE id = $2 AND n >= $1", "args": [5, 1], "rows": 1}],
                   "stock": [{"sql": "INSERT INTO orders (id) VALUES (?)", "args": ["a7"]}]}
  GET /healthz    200 while the process runs

The names are those of agents with databases, and "rows" is how many rows the statement has to change: else the transaction aborts. In
"args" are texts, numbers, booleans and nulls. PostgreSQL gets every digit of a number. MariaDB and MySQL take whole numbers of 64 bits, and an
agent there votes against others: give those as text, and write CAST(? AS DECIMAL(20, 2)) in the statement. The answer is {"id": "...", "outcome": "..."} with the status

  200  committed        committed in all databases
  202  pending          commit is decided, and some databases follow
  400  invalid          nothing was begun
  409  aborted          committed in no database
  503  closed           nothing was begun
  504  in doubt         the agents decide when a majority of them is back

A program that reaches the agent can execute statements and decide transactions. So the agent listens on this machine only, unless
--tls-cert, --tls-key and --tls-ca are given. Then each peer and each program needs a certificate of that authority. The
certificate of an agent has the agent's name as common name or as DNS name.

No web page may use the agent: what a page of another origin makes a browser send is answered 403. Without certificates so is a request
whose Host is another than localhost, a loopback address such as 127.0.0.1, or the host of --listen. The port of the Host may be any.`

// agency is the user's choice of an agent.
type agency struct {
	*ledger
	name, listen  string
	peers         []string
	cert, key, ca string
	opts          threephase.Options
}

func newTxAgent(l *ledger) *cobra.Command {
	a := &agency{ledger: l}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run an agent of three-phase commit",
		Long:  txAgentHelp,
		Example: `  pawl tx agent --db sqlite:bank.db --name bank --resource bank=postgres://postgres@localhost/bank \
    --peer stock=http://127.0.0.1:7655/ --peer witness=http://127.0.0.1:7656/`,
		Args: takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			l.agent, l.tableGiven = true, cmd.Flags().Changed("table")
			return a.run(cmd.Context(), cmd.OutOrStdout())
		}),
	}
	f := cmd.Flags()
	f.StringVar(&a.name, "name", "", "the name of this agent: 1 to 16 letters, digits and underscores")
	f.StringVar(&a.listen, "listen", "127.0.0.1:7654", "the address to listen on; port 0 is any free port")
	f.StringArrayVar(&a.peers, "peer", nil, "NAME=URL of another agent; all others are given")
	f.DurationVar(&a.opts.Timeout, "timeout", 5*time.Second, "how long to wait for another agent or a database, 50ms to 1m, the same for all agents")
	f.StringVar(&a.cert, "tls-cert", "", "file with the certificate of this agent, in PEM")
	f.StringVar(&a.key, "tls-key", "", "file with its key")
	f.StringVar(&a.ca, "tls-ca", "", "file with the certificate of the authority of all agents and programs")
	return cmd
}

// complete checks the options without a database, and returns the URLs of the peers by name.
func (a *agency) complete() (peers map[string]string, err error) {
	peers = make(map[string]string)
	for _, text := range a.peers {
		name, at, err := cutName("--peer", "NAME=URL", text)
		switch _, twice := peers[name]; {
		case err != nil:
			return nil, err
		case at == "":
			return nil, usageError("--peer %s has no URL: NAME=URL is allowed", name)
		case twice:
			return nil, usageError("--peer %s is given twice", name)
		}
		peers[name] = at
	}
	if len(a.resources) > 1 {
		return nil, usageError("--resource is given %d times: an agent has one database at most", len(a.resources))
	}
	if err := checkListen("--listen", a.listen); err != nil {
		return nil, err
	}
	return peers, inRange("--timeout", a.opts.Timeout, 50*time.Millisecond, time.Minute)
}

func (a *agency) run(ctx context.Context, w io.Writer) error {
	peers, err := a.complete()
	if err != nil {
		return err
	}
	secure, err := a.secure()
	if err != nil {
		return err
	}
	return a.withAgentLog(ctx, false, func(ctx context.Context, log *threephase.Log, _ *open.Database, handler threephase.Handler) error {
		listener, err := net.Listen("tcp", a.listen)
		if err != nil {
			return &exitError{exitUnavailable, fmt.Errorf("--listen: %w", err)}
		}
		defer listener.Close()
		scheme := "http"
		switch {
		case secure != nil:
			listener, scheme = tls.NewListener(listener, secure), "https"
		case !listener.Addr().(*net.TCPAddr).IP.IsLoopback():
			return usageError("--listen %s: an agent without --tls-cert, --tls-key and --tls-ca listens on 127.0.0.1 or ::1 only, because any program that reaches the agent can execute statements", printable(a.listen))
		}
		agent, err := threephase.New(ctx, log, a.name, peers, handler, &a.opts)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s://%s\n", scheme, listener.Addr()); err != nil {
			return errors.Join(fmt.Errorf("print the address: %w", outputError{err}), agent.Close(context.WithoutCancel(ctx)))
		}
		serving, end := context.WithCancel(ctx)
		var watching sync.WaitGroup
		defer watching.Wait()
		defer end()
		watching.Go(func() {
			defer end()
			select {
			case <-agent.Done(): // another process has the log
			case <-serving.Done():
			}
		})
		err = serveUntil(serving, listener, a.guarded(commits(agent)), func() {})
		if replaced := agent.Status().Err; errors.Is(replaced, threephase.ErrReplaced) {
			err = errors.Join(err, &exitError{exitUsage, replaced})
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWithin)
		defer cancel()
		return errors.Join(err, agent.Close(closing))
	})
}

// guarded keeps web pages away from the agent. With certificates no name of a page leads to the agent.
func (a *agency) guarded(handler http.Handler) http.Handler {
	if a.cert == "" {
		handler = forThisMachine(a.listen, handler)
	}
	return forPrograms(handler)
}

// secure returns the settings of mutual TLS, or nil.
func (a *agency) secure() (*tls.Config, error) {
	if a.cert == "" && a.key == "" && a.ca == "" {
		return nil, nil
	}
	if a.cert == "" || a.key == "" || a.ca == "" {
		return nil, usageError("--tls-cert, --tls-key and --tls-ca are given together")
	}
	pair, err := tls.LoadX509KeyPair(a.cert, a.key)
	if err != nil {
		return nil, usageError("--tls-cert and --tls-key: %v", err)
	}
	text, err := os.ReadFile(a.ca)
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		return nil, usageError("--tls-ca %s is no file of a certificate in PEM", printable(a.ca))
	}
	certificates := []tls.Certificate{pair}
	a.opts.TLS = &tls.Config{RootCAs: pool, Certificates: certificates}
	a.opts.Authenticate = func(r *http.Request, name string) error {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			return errors.New("no certificate")
		}
		if leaf := r.TLS.PeerCertificates[0]; leaf.Subject.CommonName != name && !slices.Contains(leaf.DNSNames, name) {
			return fmt.Errorf("the certificate is of %.80q", leaf.Subject.CommonName)
		}
		return nil
	}
	return &tls.Config{Certificates: certificates, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}, nil
}

// statement is a part of a payload.
type statement struct {
	SQL  string `json:"sql"`
	Args []any  `json:"args"`
	Rows *int64 `json:"rows"` // how many rows have to change
}

// parseStatements reads a payload. A number that is no int64 stays a json.Number, which has all digits.
func parseStatements(payload []byte) (all []statement, err error) {
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&all)
	if err == nil && (all == nil || !errors.Is(decoder.Decode(new(json.RawMessage)), io.EOF)) {
		err = errors.New("the value is null, or not the only one")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the statements are no list of {sql, args, rows}: %w", pawl.ErrInvalid, err)
	}
	for i, s := range all {
		if s.SQL == "" {
			return nil, fmt.Errorf("%w: statement %d has no sql", pawl.ErrInvalid, i+1)
		}
		for j, arg := range s.Args {
			switch n := arg.(type) {
			case json.Number:
				if whole, err := n.Int64(); err == nil {
					s.Args[j] = whole
				}
			case []any, map[string]any:
				return nil, fmt.Errorf("%w: statement %d: argument %d is no text, number, boolean or null", pawl.ErrInvalid, i+1, j+1)
			}
		}
	}
	return all, nil
}

// exact turns the numbers that are no int64 into text. PostgreSQL makes of it what the statement needs, with all digits. MariaDB and
// MySQL compute with text in floating point, so there a program says what the text is.
func exact(d dialect.Dialect, args []any) error {
	for i, arg := range args {
		n, is := arg.(json.Number)
		switch {
		case !is:
		case d == dialect.MySQL:
			return fmt.Errorf("argument %d is the number %.40s: only whole numbers of 64 bits reach this database exactly; give it as a string, and write CAST(? AS DECIMAL(P, S)) in the statement", i+1, n)
		default:
			args[i] = n.String()
		}
	}
	return nil
}

// executeStatements does the work of a payload in a database of a dialect.
func executeStatements(ctx context.Context, d dialect.Dialect, db dialect.DB, payload []byte) error {
	all, err := parseStatements(payload)
	if err != nil {
		return err
	}
	for i, s := range all {
		if err := exact(d, s.Args); err != nil {
			return fmt.Errorf("statement %d: %w", i+1, err)
		}
		result, err := db.ExecContext(ctx, s.SQL, s.Args...)
		if err != nil {
			return fmt.Errorf("statement %d: %w", i+1, err)
		}
		if s.Rows == nil {
			continue
		}
		if n, err := result.RowsAffected(); err != nil || n != *s.Rows {
			return errors.Join(fmt.Errorf("statement %d changed %d rows, not %d", i+1, n, *s.Rows), err)
		}
	}
	return nil
}

// parsePayloads reads the body of a program, which is one object. A body of which a part would be left out is refused, because the rest
// alone may do harm.
func parsePayloads(body io.Reader) (map[string][]byte, error) {
	var object json.RawMessage
	decoder := json.NewDecoder(body)
	err := decoder.Decode(&object)
	if err == nil && !errors.Is(decoder.Decode(new(json.RawMessage)), io.EOF) {
		err = errors.New("more text stands behind the object")
	}
	inside := json.NewDecoder(bytes.NewReader(object)) // which is well-formed
	if begin, _ := inside.Token(); err == nil && begin != json.Delim('{') {
		err = errors.New("the body begins otherwise")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the body is no object of statements by the names of agents: %w", pawl.ErrInvalid, err)
	}
	payloads := make(map[string][]byte)
	for inside.More() {
		token, err := inside.Token()
		name, _ := token.(string)
		var payload json.RawMessage
		if err == nil {
			err = inside.Decode(&payload)
		}
		if err == nil {
			_, err = parseStatements(payload)
		}
		if _, twice := payloads[name]; twice && err == nil {
			err = fmt.Errorf("%w: the name is given twice", pawl.ErrInvalid)
		}
		if err != nil {
			return nil, fmt.Errorf("%.40s: %w", name, err)
		}
		payloads[name] = payload
	}
	return payloads, nil
}

// commits serves the messages of peers, and the requests of programs.
func commits(agent *threephase.Agent) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /", agent)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /commit", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).SetWriteDeadline(time.Time{}) //nolint:errcheck // Commit ends by its own time-outs
		payloads, err := parsePayloads(http.MaxBytesReader(w, r.Body, 8<<20))
		var id threephase.ID
		if err == nil {
			id, err = agent.Commit(r.Context(), payloads)
		}
		answerProgram(w, id, err)
	})
	return mux
}

// answerProgram tells a program what became of its transaction.
func answerProgram(w http.ResponseWriter, id threephase.ID, err error) {
	says := struct {
		ID      string `json:"id,omitempty"`
		Outcome string `json:"outcome"`
		Error   string `json:"error,omitempty"`
	}{Outcome: "committed"}
	if id != (threephase.ID{}) {
		says.ID = id.String()
	}
	status := http.StatusOK
	for _, is := range []struct {
		err     error
		status  int
		outcome string
	}{{dtx.ErrPending, http.StatusAccepted, "pending"}, {dtx.ErrAborted, http.StatusConflict, "aborted"}, {dtx.ErrInDoubt, http.StatusGatewayTimeout, "in doubt"},
		{pawl.ErrClosed, http.StatusServiceUnavailable, "closed"}, {pawl.ErrInvalid, http.StatusBadRequest, "invalid"}} {
		if errors.Is(err, is.err) {
			status, says.Outcome = is.status, is.outcome
			break
		}
	}
	if err != nil {
		says.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(says) //nolint:errcheck // the program is gone
}
