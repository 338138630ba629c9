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
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/outbox"
)

const outboxHelp = `Look at a table of messages that programs fill with package outbox, and mend it. A message is

  pending    enqueued or requeued: no sending has failed in a way that counts
  sent       a sending has failed and counted: the message is sent again
  confirmed  kept by the broker
  done       completed by its consumer
  dead       failed as often as it may: the later messages of its key wait, unless the relay has --continue-keys

A refusal by the broker counts. A failure of unknown outcome counts if the broker confirms other messages meanwhile.

The database is a URL, --db or else the variable PAWL_DB: postgres:, mysql: (also MariaDB) or sqlite:. Other
users of the machine see arguments, but not variables: put a URL with a password into PAWL_DB.

Exit codes:
    0  success, also when the reader of the output has gone
   64  wrong usage, no such table, no such message, or a table of another version
   69  the database is unavailable, or refuses the statement, as without a right
   70  internal error
  128+n  pawl was ended by signal n; a relay that runs ends with 0`

// box is the user's choice of a table.
type box struct {
	db, table string
}

func newOutbox(s *store) *cobra.Command {
	b := &box{}
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Look at messages that wait for a broker, and mend them",
		Long:  outboxHelp,
		Args:  cobra.NoArgs,
		RunE:  verb(func(*cobra.Command, []string) error { return usageError("a verb is missing (try: pawl help outbox)") }),

		PersistentPreRunE: storeless("the table is in the database of --db"),
	}
	f := cmd.PersistentFlags()
	f.StringVar(&b.db, flagDB, "", "URL of the database (default: $PAWL_DB)")
	f.StringVar(&b.table, "table", "pawl_outbox", "the table of the messages, with its schema")
	cmd.AddCommand(newOutboxMigrate(b), newOutboxStatus(b), newOutboxLs(b), newOutboxShow(b), newOutboxRequeue(b), newOutboxPurge(b), newOutboxRelay(b, s))
	return cmd
}

// databaseURL is the URL that an operator gave with --db, or in PAWL_DB.
func databaseURL(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	if location := os.Getenv("PAWL_DB"); location != "" {
		return location, nil
	}
	return "", usageError("--db is missing: the URL of the database, or put it into PAWL_DB")
}

// openGiven opens the database of databaseURL. A file that is missing is made only if make says so. End closes the database.
func openGiven(ctx context.Context, given string, make bool) (db *open.Database, end func(), err error) {
	location, err := databaseURL(given)
	if err != nil {
		return nil, nil, err
	}
	if !make {
		ctx = engine.Existing(ctx)
	}
	if db, err = open.OpenDatabase(ctx, location); err != nil {
		return nil, nil, err
	}
	return db, func() { soon(closeWithin, func() { db.Close() }) }, nil //nolint:errcheck // the process ends
}

// with calls fn with the table of the user, which has to be there unless make says otherwise.
func (b *box) with(ctx context.Context, make bool, fn func(context.Context, *outbox.Table, *open.Database) error) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	db, end, err := openGiven(ctx, b.db, make)
	if err != nil {
		return bySignal(ctx, unmade(badDatabase(err)))
	}
	defer end()
	table, err := outbox.New(db.Dialect, &outbox.Options{Table: b.table})
	if err != nil {
		return fmt.Errorf("--table: %w", err)
	}
	if !make {
		err = ask(ctx, func(ctx context.Context) error { return table.Check(ctx, db.DB) })
	}
	if err == nil {
		err = fn(ctx, table, db)
	}
	if err = unmade(err); err == nil {
		return nil
	}
	return bySignal(ctx, byDatabase(err))
}

// byDatabase gives the errors of the database itself, and of its connection, their exit code.
func byDatabase(err error) error {
	if exit := (*exitError)(nil); !errors.As(err, &exit) && (dialect.Lost(err) || dialect.Said(err)) {
		return &exitError{exitUnavailable, err}
	}
	return err
}

// badDatabase names the option of a URL that is wrong.
func badDatabase(err error) error {
	if errors.Is(err, open.ErrURL) {
		return fmt.Errorf("--db: %w", err)
	}
	return err
}

// unmade says how tables that are missing are made.
func unmade(err error) error {
	if errors.Is(err, dialect.ErrMissing) || errors.Is(err, engine.ErrNoStore) {
		return &exitError{exitUsage, fmt.Errorf("%w (try: pawl outbox migrate)", err)}
	}
	return err
}

func newOutboxMigrate(b *box) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Make the tables if they are missing",
		Long: `Make the table of messages and its table of partitions if they are missing. Tables of another version
are refused, and are left as they are.`,
		Args: takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			return b.with(cmd.Context(), true, func(ctx context.Context, table *outbox.Table, db *open.Database) error {
				if err := table.Migrate(ctx, db.DB); err != nil {
					return err
				}
				_, err := fmt.Fprintf(resultOf(cmd), "%s is ready\n", printable(b.table))
				return err
			})
		}),
	}
}

func newOutboxStatus(b *box) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Count the messages",
		Long: `Count the messages of each state, and tell how long the oldest unconfirmed message waits, by the
clock of the database. Name the first 20 halted keys, each with the reason: their messages wait behind a dead
one, unless the relay has --continue-keys. The command reads the whole table.

A broker that takes no messages leaves no mark in the table. The relays print its reason, and count such
sendings in pawl_outbox_blocked_total.`,
		Args: takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			return b.with(cmd.Context(), false, func(ctx context.Context, table *outbox.Table, db *open.Database) error {
				s, err := table.Summary(ctx, db.DB)
				if err != nil {
					return err
				}
				halted, err := table.HaltedKeys(ctx, db.DB, shownKeys)
				if err != nil {
					return err
				}
				return printSummary(outputOf(ctx, cmd), s, halted, asJSON)
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newOutboxLs(b *box) *cobra.Command {
	var asJSON bool
	var f outbox.Filter
	var states []string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List messages",
		Long: `List messages in the order in which they were enqueued. TRIES counts the sendings that failed and
counted, and REASON is the error of the last of them. "pawl help outbox" tells the states. --json prints one object a line, without payloads.`,
		Example: "  pawl outbox ls --state dead --key order-7",
		Args:    takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) (err error) {
			for _, name := range states {
				state, err := stateOf(name)
				if err != nil {
					return err
				}
				f.States = append(f.States, state)
			}
			if f.Limit < 1 || f.Limit > 1000 {
				return usageError("-n is %d: 1 to 1000 are allowed", f.Limit)
			}
			return b.with(cmd.Context(), false, func(ctx context.Context, table *outbox.Table, db *open.Database) error {
				all, err := table.List(ctx, db.DB, f)
				if err != nil {
					return err
				}
				return printMessages(outputOf(ctx, cmd), all, asJSON)
			})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	flags.StringArrayVar(&states, "state", nil, "only messages of this state; several may be given")
	flags.StringVar(&f.Key, "key", "", "only messages of this key")
	flags.IntVarP(&f.Limit, "count", "n", 100, "how many messages at most")
	return cmd
}

// stateOf returns the state of a name.
func stateOf(name string) (outbox.State, error) {
	var names []string
	for state := outbox.Pending; state <= outbox.Dead; state++ {
		if state.String() == name {
			return state, nil
		}
		names = append(names, state.String())
	}
	return 0, usageError("--state is %q: allowed are %s", name, strings.Join(names, ", "))
}

func newOutboxShow(b *box) *cobra.Command {
	var asJSON, payload bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a message",
		Long: `Show a message with its headers and the error of the last sending that failed and counted. --payload
prints the payload as it is, and nothing else. --json has the payload in base64.`,
		Args: takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if asJSON && payload {
				return usageError("--json and --payload exclude each other")
			}
			return b.with(cmd.Context(), false, func(ctx context.Context, table *outbox.Table, db *open.Database) error {
				e, err := table.Status(ctx, db.DB, args[0])
				switch {
				case err != nil:
					return noMessage(args[0], err)
				case payload:
					_, err = outputOf(ctx, cmd).Write(e.Payload)
					return err
				}
				return printMessage(outputOf(ctx, cmd), e, asJSON)
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	cmd.Flags().BoolVar(&payload, "payload", false, "print the payload")
	return cmd
}

// noMessage makes a usage error of an ID that the table does not know.
func noMessage(id string, err error) error {
	if errors.Is(err, outbox.ErrUnknown) || errors.Is(err, outbox.ErrNotDead) {
		return &exitError{exitUsage, fmt.Errorf("%s: %w", printable(id), err)}
	}
	return err
}

func newOutboxRequeue(b *box) *cobra.Command {
	var all bool
	var key string
	cmd := &cobra.Command{
		Use:   "requeue [ID...]",
		Short: "Send dead messages again",
		Long: `Make dead messages pending, with no failure counted and no reason. IDs choose single messages, --key all dead
messages of a key, and --all those of the table. A relay sends them, and then the messages of their keys that waited. A relay
that runs looks for requeued messages once a minute, and a relay that starts does so at once. An ID of a message that is not
dead is refused; the IDs before it are requeued.`,
		Args: cobra.ArbitraryArgs,
		RunE: verb(func(cmd *cobra.Command, ids []string) error {
			ways := 0
			for _, given := range []bool{len(ids) > 0, cmd.Flags().Changed("key"), all} {
				if given {
					ways++
				}
			}
			if ways != 1 {
				return usageError("IDs, a --key or --all is needed: the form is: %s", cmd.UseLine())
			}
			return b.with(cmd.Context(), false, func(ctx context.Context, table *outbox.Table, db *open.Database) error {
				n := int64(len(ids))
				for _, id := range ids {
					if err := table.Requeue(ctx, db.DB, id); err != nil {
						return noMessage(id, err)
					}
				}
				if len(ids) == 0 {
					var err error
					if n, err = table.RequeueDead(ctx, db.DB, key); err != nil {
						return err
					}
				}
				when := ""
				if n > 0 {
					when = ": a relay that runs looks for requeued messages once a minute"
				}
				_, err := fmt.Fprintf(resultOf(cmd), "requeued %d%s\n", n, when)
				return err
			})
		}),
	}
	cmd.Flags().StringVar(&key, "key", "", "the dead messages of this key")
	cmd.Flags().BoolVar(&all, "all", false, "the dead messages of every key")
	return cmd
}

func newOutboxPurge(b *box) *cobra.Command {
	var older time.Duration
	var dead, done bool
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Delete old messages",
		Long: `Delete the messages that have been confirmed or done for the time of --older, by the clock of the database. The
time counts in whole seconds: less than 1s is 0, which deletes all of them. With --dead, delete dead messages of
that age too: they are never sent, and the other messages of their keys are.

A relay with --resend sends a confirmed message again until it is done. A confirmed message that is purged is
not sent again, though its consumer may have lost it. So use --done then, which deletes no confirmed message.`,
		Args: takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("older") || older < 0 {
				return usageError("--older is needed: a time as 168h, 0 or more")
			}
			return b.with(cmd.Context(), false, func(ctx context.Context, table *outbox.Table, db *open.Database) error {
				states := []outbox.State{outbox.Done, outbox.Confirmed}
				if done {
					states = states[:1]
				}
				if dead {
					states = append(states, outbox.Dead)
				}
				n, err := table.Purge(ctx, db.DB, older, states...)
				if err == nil || n > 0 {
					if _, failed := fmt.Fprintf(resultOf(cmd), "purged %d\n", n); err == nil {
						err = failed
					}
				}
				return err
			})
		}),
	}
	cmd.Flags().DurationVar(&older, "older", 0, "the least age, as 168h")
	cmd.Flags().BoolVar(&dead, "dead", false, "also delete dead messages")
	cmd.Flags().BoolVar(&done, "done", false, "delete no confirmed message that is not done")
	return cmd
}
