package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase"
	"github.com/pawl-go/pawl/engine/open"
)

// agentFlag adds the flag that chooses the log of an agent.
func (l *ledger) agentFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&l.agent, "agent", false, `the log is that of an agent (see "pawl help tx agent"); its table is pawl_3pc by default`)
	before := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l.tableGiven = cmd.Flags().Changed("table")
		return before(cmd, args)
	}
}

// withAgentLog does for the log of an agent what with does for the log of coordinators. The handler is nil without a resource.
func (l *ledger) withAgentLog(ctx context.Context, make bool, fn func(context.Context, *threephase.Log, *open.Database, threephase.Handler) error) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	db, end, err := openGiven(ctx, l.db, make)
	if err != nil {
		return bySignal(ctx, unlogged(err))
	}
	defer end()
	table := ""
	if l.tableGiven {
		table = l.table
	}
	log, err := threephase.NewLog(db.Dialect, db.DB, &threephase.LogOptions{Table: table})
	if err != nil {
		return fmt.Errorf("--table: %w", err)
	}
	var handler threephase.Handler
	for _, text := range l.resources {
		r, d, end, err := openResource(ctx, text)
		if err != nil {
			return bySignal(ctx, err)
		}
		defer end()
		handler, err = threephase.Database(r, func(ctx context.Context, db dialect.DB, _ threephase.ID, payload []byte) error {
			return executeStatements(ctx, d, db, payload)
		})
		if err != nil {
			return fmt.Errorf("--resource: %w", err)
		}
	}
	if !make {
		err = ask(ctx, log.CheckTables)
	}
	if err == nil {
		err = fn(ctx, log, db, handler)
	}
	if err = unlogged(err); err == nil {
		return nil
	}
	return bySignal(ctx, err)
}

// agentLog is a list of the log of an agent.
type agentLog struct {
	*threephase.Log
	handler threephase.Handler
}

// agentLogs calls fn with the log of an agent.
func (l *ledger) agentLogs(ctx context.Context, fn func(context.Context, agentLog) error) error {
	if len(l.resources) > 1 {
		return usageError("--resource is given %d times: an agent has one database at most", len(l.resources))
	}
	return l.withAgentLog(ctx, false, func(ctx context.Context, log *threephase.Log, _ *open.Database, handler threephase.Handler) error {
		return fn(ctx, agentLog{log, handler})
	})
}

// ls lists the transactions, or the decisions of operators.
func (a agentLog) ls(ctx context.Context, w io.Writer, decisions, asJSON bool) error {
	if !decisions {
		all, err := a.Transactions(ctx, a.handler)
		if err != nil {
			return err
		}
		return printAgentTransactions(w, all, asJSON)
	}
	orders, err := a.Heuristics(ctx)
	if err != nil {
		return err
	}
	var all []decisionView
	for _, h := range orders {
		all = append(all, viewOrder(h))
	}
	return printDecisionViews(w, all, asJSON)
}

// show shows a transaction.
func (a agentLog) show(ctx context.Context, w io.Writer, text string, asJSON bool) error {
	id, err := threephase.ParseID(text)
	if err != nil {
		return err
	}
	all, err := a.Transactions(ctx, a.handler)
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.ID == id {
			return printAgentTransaction(w, t, asJSON)
		}
	}
	return unlogged(fmt.Errorf("%w: %v: either the transaction is over at all agents, or this agent never heard of it", dtx.ErrNoTransaction, id))
}

// resolve decides a transaction for an operator.
func (a agentLog) resolve(ctx context.Context, w io.Writer, text string, commit bool, reason string) error {
	id, err := threephase.ParseID(text)
	if err != nil {
		return err
	}
	if err := a.Resolve(ctx, id, commit, reason); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%v: to be %s by this agent, when it runs; tell all agents that are left the same\n", id, map[bool]string{true: "committed", false: "rolled back"}[commit])
	return err
}

// agentTransactionView is a transaction of an agent in JSON.
type agentTransactionView struct {
	ID        string        `json:"id"`
	State     string        `json:"state"`
	Finished  bool          `json:"finished"` // the database has carried the decision out
	Elections int           `json:"elections"`
	Began     *time.Time    `json:"began"`
	Group     string        `json:"group"`
	Decision  *decisionView `json:"decision"` // of an operator
}

func viewOrder(h *threephase.Heuristic) decisionView {
	return decisionView{h.ID.String(), map[bool]string{true: "commit", false: "abort"}[h.Commit], h.Reason, h.Time.UTC()}
}

func viewAgentTransaction(t threephase.Transaction) agentTransactionView {
	v := agentTransactionView{ID: t.ID.String(), State: t.State.String(), Finished: t.Finished, Elections: t.Elections, Group: t.Group}
	if !t.Began.IsZero() {
		began := t.Began.UTC()
		v.Began = &began
	}
	if t.Heuristic != nil {
		d := viewOrder(t.Heuristic)
		v.Decision = &d
	}
	return v
}

func (v agentTransactionView) began() string {
	if v.Began == nil {
		return "unknown"
	}
	return v.Began.Format(time.RFC3339)
}

func printAgentTransactions(w io.Writer, all []threephase.Transaction, asJSON bool) error {
	rows := [][]string{{"ID", "STATE", "FINISHED", "BEGAN", "ELECTION", "GROUP"}}
	for _, t := range all {
		v := viewAgentTransaction(t)
		if asJSON {
			if err := json.NewEncoder(w).Encode(v); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{v.ID, v.State, map[bool]string{true: "yes", false: "no"}[v.Finished], v.began(), fmt.Sprint(v.Elections), cmp.Or(printable(v.Group), "-")})
	}
	if asJSON {
		return nil
	}
	return table(w, rows)
}

func printAgentTransaction(w io.Writer, t threephase.Transaction, asJSON bool) error {
	v := viewAgentTransaction(t)
	if asJSON {
		return json.NewEncoder(w).Encode(v)
	}
	text := new(bytes.Buffer)
	fmt.Fprintf(text, "%s: %s\n", v.ID, v.State)
	rows := [][]string{{"  finished", map[bool]string{true: "yes", false: "no"}[v.Finished]}, {"  began", v.began()}, {"  election", fmt.Sprint(v.Elections)}, {"  group", cmp.Or(printable(v.Group), "-")}}
	if d := v.Decision; d != nil {
		rows = append(rows, []string{"  decided", d.Decision + ", at " + d.Time.Format(time.RFC3339)}, []string{"  reason", printable(d.Reason)})
	}
	table(text, rows) //nolint:errcheck // a buffer takes all
	_, err := text.WriteTo(w)
	return err
}

func printDecisionViews(w io.Writer, all []decisionView, asJSON bool) error {
	slices.SortFunc(all, func(a, b decisionView) int { return a.Time.Compare(b.Time) })
	rows := [][]string{{"ID", "DECISION", "TIME", "REASON"}}
	for _, v := range all {
		if asJSON {
			if err := json.NewEncoder(w).Encode(v); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{v.ID, v.Decision, v.Time.Format(time.RFC3339), printable(v.Reason)})
	}
	if asJSON {
		return nil
	}
	return table(w, rows)
}

func newTxTrust(l *ledger) *cobra.Command {
	return &cobra.Command{
		Use:   "trust PEER",
		Short: "Let an agent accept a peer with a new log",
		Long: `Let the agent whose log is in --db accept a peer that has lost its log, and has a new one. The peer has forgotten its votes. So first
decide its open transactions by "pawl tx resolve --agent", as the other agents have decided or will decide.`,
		Args: takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			l.agent, l.tableGiven = true, cmd.Flags().Changed("table")
			return l.agentLogs(cmd.Context(), func(ctx context.Context, a agentLog) error {
				if err := a.Trust(ctx, args[0]); err != nil {
					return err
				}
				_, err := fmt.Fprintf(resultOf(cmd), "the next log of %s is accepted\n", printable(args[0]))
				return err
			})
		}),
	}
}
