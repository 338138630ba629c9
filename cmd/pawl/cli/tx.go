package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
	"github.com/pawl-go/pawl/dtx/threephase"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
)

const txHelp = `Look at the transactions over several databases of programs with package dtx, and finish them. A transaction is

  running      its coordinator is not fenced and has recorded no commit
  committing   commit is recorded: the branches that are left are committed
  aborting     its coordinator is fenced without a record: the branches that are left are rolled back
  unknown      the log has lost its coordinator: an operator has to decide
  resolved     the same, and an operator has decided

The log is in the database --db, or else the variable PAWL_DB. Each other database of the programs is a --resource NAME=URL, with the
name that the programs use. With --resource NAME the URL is in the variable PAWL_DB_ with NAME behind it, in the same letters:
PAWL_DB_stock for stock. URLs are postgres: or mysql: (also MariaDB), and sqlite: for the log. Other users of the machine see arguments, but not variables: put a
URL with a password into a variable.

Exit codes:
    0  success, also when the reader of the output has gone
   64  wrong usage, no such table, no such transaction, or a transaction that is not for an operator to decide
   69  a database is unavailable, or refuses a statement, as without a right
   70  internal error
   76  recover: transactions are left, for an operator or for a later call; resolve: a branch is left for recovery
  128+n  pawl was ended by signal n; an agent that runs ends with 0`

// ledger is the user's choice of a log and of resources.
type ledger struct {
	db, table  string
	resources  []string
	agent      bool // the log is that of an agent
	tableGiven bool
}

func newTx() *cobra.Command {
	l := &ledger{}
	cmd := &cobra.Command{
		Use:   "tx",
		Short: "Look at transactions over several databases, and finish them",
		Long:  txHelp,
		Args:  cobra.NoArgs,
		RunE:  verb(func(*cobra.Command, []string) error { return usageError("a verb is missing (try: pawl help tx)") }),

		PersistentPreRunE: storeless("the log is in the database of --db"),
	}
	f := cmd.PersistentFlags()
	f.StringVar(&l.db, flagDB, "", "URL of the database of the log (default: $PAWL_DB)")
	f.StringVar(&l.table, "table", "pawl_dtx", "the table of the log, with its schema")
	f.StringArrayVar(&l.resources, "resource", nil, "NAME=URL of a database of the programs, or NAME with the URL in a variable, as PAWL_DB_stock for stock; several may be given")
	cmd.AddCommand(newTxMigrate(l), newTxLs(l), newTxShow(l), newTxRecover(l), newTxResolve(l), newTxAgent(l), newTxTrust(l))
	return cmd
}

// opened is a log with its resources.
type opened struct {
	*dtx.Log
	resources []*dtx.Resource
}

// with calls fn with the log and the resources of the user. The log has to be there unless make says otherwise.
func (l *ledger) with(ctx context.Context, make bool, fn func(context.Context, opened) error) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	db, end, err := openGiven(ctx, l.db, make)
	if err != nil {
		return bySignal(ctx, unlogged(err))
	}
	defer end()
	log, err := dtx.NewLog(db.Dialect, db.DB, &dtx.LogOptions{Table: l.table})
	if err != nil {
		return fmt.Errorf("--table: %w", err)
	}
	o := opened{Log: log}
	for _, text := range l.resources {
		r, _, end, err := openResource(ctx, text)
		if err != nil {
			return bySignal(ctx, err)
		}
		defer end()
		o.resources = append(o.resources, r)
	}
	if !make {
		err = ask(ctx, log.CheckTables)
	}
	if err == nil {
		err = fn(ctx, o)
	}
	if err = unlogged(err); err == nil {
		return nil
	}
	return bySignal(ctx, err)
}

// openResource opens a database that takes part.
func openResource(ctx context.Context, text string) (r *dtx.Resource, d dialect.Dialect, end func(), err error) {
	name, location, err := cutName("--resource", "NAME=URL or NAME", text)
	if err != nil {
		return nil, d, nil, err
	}
	if name == text {
		location = os.Getenv("PAWL_DB_" + name)
	}
	if location == "" {
		return nil, d, nil, usageError("--resource %s: no URL: give NAME=URL, or put the URL into PAWL_DB_%s", name, name)
	}
	db, err := open.OpenDatabase(engine.Existing(ctx), location)
	if err != nil {
		return nil, d, nil, fmt.Errorf("--resource %s: %w", name, err)
	}
	end = func() { soon(closeWithin, func() { db.Close() }) } //nolint:errcheck // the process ends
	switch db.Dialect {
	case dialect.PostgreSQL:
		return dtx.PostgreSQL(name, db.DB), db.Dialect, end, nil
	case dialect.MySQL:
		return dtx.MySQL(name, db.DB), db.Dialect, end, nil
	}
	end()
	return nil, d, nil, usageError("--resource %s: SQLite prepares no transactions, so only the log can be there", name)
}

// unlogged says how tables that are missing are made, and that an operator's wish or a statement is refused, or not done yet.
func unlogged(err error) error {
	switch {
	case errors.Is(err, dialect.ErrMissing) || errors.Is(err, engine.ErrNoStore):
		return &exitError{exitUsage, fmt.Errorf("%w (try: pawl tx migrate)", err)}
	case errors.Is(err, dtx.ErrLeft):
		return &exitError{exitUnfinished, fmt.Errorf("%w (try: pawl tx recover)", err)}
	case dialect.Lost(err) || dialect.Said(err): // and the transaction may have a branch there
		return byDatabase(err)
	case errors.Is(err, dtx.ErrDecided) || errors.Is(err, dtx.ErrNoTransaction):
		return &exitError{exitUsage, err}
	}
	return byDatabase(err)
}

func newTxMigrate(l *ledger) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make the tables of the log if they are missing",
		Long:  `Make the tables of the log if they are missing. Tables of another version are refused, and are left as they are.`,
		Args:  takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			if l.agent {
				return l.withAgentLog(cmd.Context(), true, func(ctx context.Context, log *threephase.Log, _ *open.Database, _ threephase.Handler) error {
					if err := log.Migrate(ctx); err != nil {
						return err
					}
					_, err := fmt.Fprintln(resultOf(cmd), "the log of the agent is ready")
					return err
				})
			}
			return l.with(cmd.Context(), true, func(ctx context.Context, o opened) error {
				if err := o.Migrate(ctx); err != nil {
					return err
				}
				_, err := fmt.Fprintf(resultOf(cmd), "%s is ready\n", printable(l.table))
				return err
			})
		}),
	}
	l.agentFlag(cmd)
	return cmd
}

func newTxLs(l *ledger) *cobra.Command {
	var asJSON, decisions bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List transactions that are not finished",
		Long: `List the transactions that have a prepared branch on a --resource, or a record in the log. OLDEST is how long the
oldest branch has been prepared: its rows are locked since then. MySQL and MariaDB do not tell that. "pawl help tx" tells the
states. Name every database by --resource: without one the list has recorded commits only, so an empty list proves nothing.
--resolved lists the decisions of operators instead. --json prints one object a line.

With --agent these are the transactions of an agent that are not over at all agents. An agent that is ready, precommitted or
preaborted waits for a decision, and keeps its rows locked. Unknown is work that the --resource has prepared and the log has lost.`,
		Example: "  pawl tx ls --resource stock=mysql://root@localhost/stock\n  pawl tx ls --agent --db sqlite:stock.db",
		Args:    takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			if l.agent {
				return l.agentLogs(cmd.Context(), func(ctx context.Context, a agentLog) error { return a.ls(ctx, outputOf(ctx, cmd), decisions, asJSON) })
			}
			return l.with(cmd.Context(), false, func(ctx context.Context, o opened) error {
				if decisions {
					all, err := o.Heuristics(ctx)
					if err != nil {
						return err
					}
					return printDecisions(outputOf(ctx, cmd), all, asJSON)
				}
				all, err := o.Transactions(ctx, o.resources)
				if len(o.resources) == 0 {
					news("without --resource the list has recorded commits only: it shows no other prepared branch")
				}
				return errors.Join(printTransactions(outputOf(ctx, cmd), all, asJSON), err)
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&decisions, "resolved", false, "list the decisions of operators")
	l.agentFlag(cmd)
	return cmd
}

func newTxShow(l *ledger) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a transaction",
		Long:  `Show a transaction with its branches, and the decision of an operator if there is one.`,
		Args:  takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if l.agent {
				return l.agentLogs(cmd.Context(), func(ctx context.Context, a agentLog) error { return a.show(ctx, outputOf(ctx, cmd), args[0], asJSON) })
			}
			id, err := dtx.ParseID(args[0])
			if err != nil {
				return err
			}
			return l.with(cmd.Context(), false, func(ctx context.Context, o opened) error {
				t, err := find(ctx, o, id)
				if t.ID != id {
					return err
				}
				return errors.Join(printTransaction(outputOf(ctx, cmd), t, asJSON), err)
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	l.agentFlag(cmd)
	return cmd
}

// find returns a transaction, if need be with nothing but the decision of an operator. Databases that do not answer
// make an error also beside the transaction.
func find(ctx context.Context, o opened, id dtx.ID) (dtx.Transaction, error) {
	all, away := o.Transactions(ctx, o.resources)
	for _, t := range all {
		if t.ID == id {
			return t, away
		}
	}
	decisions, err := o.Heuristics(ctx)
	if h, is := decisions[id]; is {
		return dtx.Transaction{ID: id, State: dtx.Resolved, Heuristic: &h}, away
	}
	return dtx.Transaction{}, errors.Join(fmt.Errorf("%w: %v: either the transaction is finished, or a --resource is missing", dtx.ErrNoTransaction, id), away, err)
}

func newTxResolve(l *ledger) *cobra.Command {
	var commit, abort bool
	var reason string
	cmd := &cobra.Command{
		Use:   "resolve ID",
		Short: "Decide a transaction that the log does not know",
		Long: `Decide a transaction for good, and finish its branches. The log keeps the decision and its reason.

An unknown transaction waits for that, because the log has lost its coordinator. "pawl tx show" tells which branches are prepared. A
branch that is not prepared on a resource that answers was committed there, or rolled back. Look at its rows before you decide.

--abort of a running transaction that has a prepared branch fences its coordinator: the coordinator's open transactions over several
databases are all rolled back. A decision against the log is refused. The same goes for a transaction without a record and without a
prepared branch. Only its rows tell whether the transaction runs, was committed, or was rolled back.

While another connection has a branch, the command tries for a second, and then exits with 76. The decision stands, and recovery finishes the branch.

With --agent the decision is that of one agent, which acts within its time-out, or when it runs again. That is for agents
that have lost their majority for ever. Tell all agents that are left the same.`,
		Example: `  pawl tx resolve pawl-1f-2a-3 --abort --reason "the order is not there, see ticket 12" --resource stock`,
		Args:    takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			switch {
			case commit == abort:
				return usageError("either --commit or --abort is needed: the form is: %s", cmd.UseLine())
			case reason == "":
				return usageError("--reason is needed: 1 to 500 bytes")
			case l.agent:
				return l.agentLogs(cmd.Context(), func(ctx context.Context, a agentLog) error {
					return a.resolve(ctx, resultOf(cmd), args[0], commit, reason)
				})
			}
			id, err := dtx.ParseID(args[0])
			switch {
			case err != nil:
				return err
			case len(l.resources) == 0:
				return usageError("--resource is needed: the databases whose branches are to be finished")
			}
			return l.with(cmd.Context(), false, func(ctx context.Context, o opened) error {
				if err := o.Resolve(ctx, o.resources, id, commit, reason); err != nil {
					return err
				}
				done := map[bool]string{true: "committed", false: "rolled back"}[commit]
				_, err := fmt.Fprintf(resultOf(cmd), "%v: the branches on %d resources are %s\n", id, len(o.resources), done)
				return err
			})
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&commit, "commit", false, "commit the branches")
	f.BoolVar(&abort, "abort", false, "roll the branches back")
	f.StringVar(&reason, "reason", "", "the reason, which the log keeps: 1 to 500 bytes")
	l.agentFlag(cmd)
	return cmd
}

func newTxRecover(l *ledger) *cobra.Command {
	opts := &dtx.Options{}
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Finish the transactions of dead coordinators",
		Long: `Finish the transactions of coordinators that are dead, and then end. Programs with package dtx do so by themselves: this is
for a log whose programs are all gone. A coordinator is dead after it has been silent for the lease.

Exit code 76 says that transactions are left, and the command lists them. Unknown transactions wait for "pawl tx resolve". A
transaction with a recorded commit also waits for the databases that no --resource names: the error names those.`,
		Args: takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			if len(l.resources) == 0 {
				return usageError("--resource is needed: the databases whose branches are to be finished")
			}
			if err := inRange("--lease", opts.Lease, time.Second, time.Hour); err != nil {
				return err
			}
			if within < 2*opts.Lease {
				return usageError("--within is %v: at least twice the lease of %v is allowed", within, opts.Lease)
			}
			return l.with(cmd.Context(), false, func(ctx context.Context, o opened) error {
				done, left, err := recoverAll(ctx, o, opts, within)
				if err != nil && left == nil {
					return err
				}
				_, failed := fmt.Fprintf(resultOf(cmd), "committed %d, rolled back %d, left %d\n", done.Committed, done.RolledBack, len(left))
				if err = errors.Join(err, failed); err != nil || len(left) == 0 {
					return err
				}
				if err := printTransactions(outputOf(ctx, cmd), left, false); err != nil {
					return err
				}
				missing := ""
				if names := o.unnamed(left...); len(names) > 0 {
					missing = ", and no --resource is given for " + printable(strings.Join(names, ", "))
				}
				return &exitError{exitUnfinished, fmt.Errorf("transactions are left%s (try: pawl help tx recover)", missing)}
			})
		}),
	}
	f := cmd.Flags()
	f.DurationVar(&opts.Lease, "lease", 10*time.Second, "how long a coordinator may be silent, 1s to 1h: the lease of the programs")
	f.DurationVar(&within, "within", time.Minute, "how long to try, at least twice the lease")
	return cmd
}
