package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

const idemHelp = `Run commands once for a key, whatever is retried, and keep their exit codes and output.
"pawl help idem run" tells the rules, also those after a crash.

Keys are in a scope, and --scope names another. Programs that use package idem have scopes
of their own, whose keys "pawl idem ls --all", "show" and "forget" know as well. Kept output
is plain text in the store.

Stores remove no keys by themselves: run "pawl idem forget --expired" now and then.`

// idemNames begin the names of the locks of keys.
const idemNames = "pawl:idem/key/"

// defaultScope is that of the keys of commands.
const defaultScope = "pawl idem run"

func newIdem(s *store) *cobra.Command {
	scope := defaultScope
	cmd := &cobra.Command{
		Use:   "idem",
		Short: "Run a command once for a key",
		Long:  idemHelp,
		Args:  cobra.NoArgs,
		RunE:  verb(func(*cobra.Command, []string) error { return usageError("a verb is missing (try: pawl help idem)") }),
	}
	cmd.PersistentFlags().StringVar(&scope, "scope", defaultScope, "the scope of the key")
	cmd.AddCommand(newIdemRun(s, &scope), newIdemLs(s, &scope), newIdemShow(s, &scope), newIdemForget(s, &scope))
	return cmd
}

func newIdemLs(s *store, scope *string) *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the keys",
		Long: `List the keys of the scope, or with --all of every scope. A key in the state

  running     has a caller that works on it
  unfinished  was claimed, and its caller came to no end or failed after such a caller
  done        has a kept result of SIZE bytes, with the exit code and marks
  used        was used by a program, and has no result

CLAIMS counts how often the key was claimed; a call that was refused with 76 counts. AGE and
EXPIRES go by the clocks of the machines. Keys that have expired are left out, unless a caller works
on them. --json prints one object a line, as "pawl idem show --json" does.`,
		Args: takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			if all && cmd.Flags().Changed("scope") {
				return usageError("--scope is not for --all, which is every scope")
			}
			if all {
				*scope = ""
			} else if err := (idem.Key{Scope: *scope, ID: "any"}).Validate(); err != nil {
				return err
			}
			return s.reading(cmd.Context(), func(ctx context.Context, client *pawl.Client) error {
				return listKeys(ctx, idem.NewLeases(client, nil), *scope, asJSON, cmd.OutOrStdout())
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&all, "all", false, "list the keys of every scope")
	return cmd
}

func listKeys(ctx context.Context, leases *idem.Leases, scope string, asJSON bool, w io.Writer) error {
	var all []idem.Entry
	var bad []error
	for e, err := range leases.List(ctx, scope) {
		if err != nil {
			bad = append(bad, err)
			continue
		}
		all = append(all, e)
	}
	err := summary(bad)
	if err != nil && all == nil {
		return err
	}
	slices.SortFunc(all, func(a, b idem.Entry) int {
		return cmp.Or(cmp.Compare(a.Key.Scope, b.Key.Scope), cmp.Compare(a.Key.ID, b.Key.ID))
	})
	rows := [][]string{{"SCOPE", "KEY", "STATE", "CLAIMS", "AGE", "EXPIRES", "SIZE", "HOLDER"}}
	encoder := json.NewEncoder(w)
	for _, e := range all {
		if asJSON {
			if err := encoder.Encode(keyViewOf(e, nil)); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{
			printable(e.Key.Scope), printable(e.Key.ID), keyState(e), strconv.Itoa(e.Attempts),
			age(e), expires(e), strconv.Itoa(e.Size), cmp.Or(holderOf(e), "-"),
		})
	}
	if asJSON {
		return err
	}
	return cmp.Or(table(w, rows), err)
}

// mostBad is how many errors of records are told.
const mostBad = 5

// summary makes one error of those of several records. The last one may have ended the work, so summary keeps that one and its exit code.
func summary(bad []error) error {
	n := len(bad)
	if n == 0 {
		return nil
	}
	var exit *exitError
	errors.As(coded(bad[n-1]), &exit)
	if n > mostBad {
		bad = append(bad[:mostBad-1:mostBad-1], fmt.Errorf("and %d more errors of records", n-mostBad), bad[n-1])
	}
	return &exitError{exit.code, errors.Join(bad...)}
}

func newIdemShow(s *store, scope *string) *cobra.Command {
	var asJSON, output bool
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show a key and its kept result",
		Long: `Show the state of KEY, its kept exit code and how much output is kept. --output prints the
kept output itself, each stream to its own, and nothing else. A KEY that the store does not
know is no error. "pawl help idem ls" tells the states.`,
		Args: takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			key := idem.Key{Scope: *scope, ID: args[0]}
			switch {
			case asJSON && output:
				return usageError("--json and --output exclude each other")
			case key.Validate() != nil:
				return key.Validate()
			}
			return s.reading(cmd.Context(), func(ctx context.Context, client *pawl.Client) error {
				e, found, err := idem.NewLeases(client, nil).Show(ctx, key)
				if err != nil {
					return err
				}
				if !found {
					e = idem.Entry{Key: key}
				}
				return showKey(e, asJSON, output, cmd.OutOrStdout())
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	cmd.Flags().BoolVar(&output, "output", false, "print the kept output")
	return cmd
}

func showKey(e idem.Entry, asJSON, output bool, w io.Writer) error {
	var kept *outcome // nil also for the result of another program
	if e.State == idem.Done {
		kept, _ = decodeOutcome(e.Result)
	}
	switch {
	case asJSON:
		return json.NewEncoder(w).Encode(keyViewOf(e, kept))
	case output && kept != nil:
		err := kept.print(w, os.Stderr)
		if err == nil && kept.cut {
			complain(kept.cutText(e.Key.ID))
		}
		return err
	case output:
		return usageError("%q: no output of a command is kept", e.Key.ID)
	case e.State == "":
		_, err := fmt.Fprintf(w, "%s: the store has no such key\n", printable(e.Key.ID))
		return err
	}
	return printKey(w, e, kept)
}

func printKey(w io.Writer, e idem.Entry, kept *outcome) error {
	text := new(bytes.Buffer)
	fmt.Fprintf(text, "%s: %s\n", printable(e.Key.ID), keyState(e))
	var rows [][]string
	row := func(name, text string) { rows = append(rows, []string{"  " + name, text}) }
	if kept != nil {
		size := fmt.Sprintf("%d bytes", kept.size())
		if kept.cut {
			size += ", and the rest was not kept"
		}
		row("exit code", strconv.Itoa(kept.code))
		row("output", size)
	}
	row("claims", strconv.Itoa(e.Attempts))
	row("began", e.Began.UTC().Format(time.RFC3339)+", "+age(e)+" ago")
	row("expires in", expires(e))
	if e.Holder != nil {
		row("holder", holderOf(e))
	}
	for _, p := range e.Points {
		row("reached", printable(p))
	}
	table(text, rows) //nolint:errcheck // a buffer takes all
	_, err := text.WriteTo(w)
	return err
}

func newIdemForget(s *store, scope *string) *cobra.Command {
	var expired bool
	cmd := &cobra.Command{
		Use:   "forget [KEY]",
		Short: "Remove a key, or all that have expired",
		Long: `Remove KEY and its kept result: the next call with this key runs its command. While a
caller works on KEY nothing is removed, and the exit code is 75. The same holds while the
store may have forgotten locks. A KEY that the store does not know is no error.

With --expired instead of KEY, remove the keys of every scope that have expired. Stores remove
nothing by themselves.`,
		Args: takes(0, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if expired != (len(args) == 0) {
				return usageError("either KEY or --expired is needed: the form is: %s", cmd.UseLine())
			}
			if expired && cmd.Flags().Changed("scope") {
				return usageError("--scope is not for --expired, which is every scope")
			}
			return s.operating(cmd.Context(), func(ctx context.Context, client *pawl.Client) error {
				leases := idem.NewLeases(client, nil)
				if expired {
					return forgetExpired(ctx, leases, cmd.OutOrStdout())
				}
				return forgetKey(ctx, leases, idem.Key{Scope: *scope, ID: args[0]}, cmd.OutOrStdout())
			})
		}),
	}
	cmd.Flags().BoolVar(&expired, "expired", false, "remove the keys of every scope that have expired")
	return cmd
}

func forgetExpired(ctx context.Context, leases *idem.Leases, w io.Writer) error {
	n, err := leases.Sweep(ctx)
	var bad interface{ Unwrap() []error }
	if errors.As(err, &bad) {
		err = summary(bad.Unwrap())
	}
	if n > 0 || err == nil {
		_, printed := fmt.Fprintf(w, "forgot %d\n", n)
		err = cmp.Or(printed, err)
	}
	return err
}

func forgetKey(ctx context.Context, leases *idem.Leases, key idem.Key, w io.Writer) error {
	e, found, err := leases.Show(ctx, key)
	if err == nil || found { // a result that is not whole is forgotten too
		err = leases.Forget(ctx, key)
	}
	switch {
	case err != nil:
		return err
	case !found:
		_, err = fmt.Fprintf(w, "%s: the store has no such key\n", printable(key.ID))
	default:
		_, err = fmt.Fprintf(w, "forgot %s (%s)\n", printable(key.ID), keyState(e))
	}
	return err
}

// keyView is a key in JSON.
type keyView struct {
	Scope    string     `json:"scope"`
	Key      string     `json:"key"`
	State    string     `json:"state"` // "" when the store does not know the key
	Claims   int        `json:"claims"`
	Token    uint64     `json:"token"` // of the last claim
	Began    *time.Time `json:"began"` // these by the clocks of machines
	Expires  *time.Time `json:"expires"`
	Size     int        `json:"size"`                // of the kept result
	ExitCode *int       `json:"exit_code,omitempty"` // only show tells it
	Output   *int       `json:"output,omitempty"`    // the bytes of kept output; as above
	Cut      bool       `json:"cut"`                 // not all output was kept; as above
	Points   []string   `json:"points,omitempty"`    // that a program has reached
	Holder   string     `json:"holder,omitempty"`
}

func keyViewOf(e idem.Entry, kept *outcome) keyView {
	v := keyView{
		Scope: e.Key.Scope, Key: e.Key.ID, State: keyState(e), Claims: e.Attempts, Token: uint64(e.Token),
		Size: e.Size, Points: e.Points,
	}
	if e.State != "" {
		v.Began, v.Expires = &e.Began, &e.Expires
	}
	if kept != nil {
		size := kept.size()
		v.ExitCode, v.Output, v.Cut = &kept.code, &size, kept.cut
	}
	if e.Holder != nil {
		v.Holder = e.Holder.Label
	}
	return v
}

// keyState tells an operator whether a caller works on a claimed key.
func keyState(e idem.Entry) string {
	switch {
	case e.State == idem.Claimed && e.Holder != nil:
		return "running"
	case e.State == idem.Claimed:
		return "unfinished"
	}
	return string(e.State)
}

func holderOf(e idem.Entry) string {
	if e.Holder == nil {
		return ""
	}
	return printable(e.Holder.Label)
}

func age(e idem.Entry) string     { return span(max(0, time.Since(e.Began))) }
func expires(e idem.Entry) string { return span(max(0, time.Until(e.Expires))) }
