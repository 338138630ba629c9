package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
)

func newShow(s *store) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the holders and waiters of a name",
		Long: `Show every claim on NAME, holders first, then the queue in its order.

AGE is the time since the request for the lock, and HELD the time since the grant. LEFT
is the time until the store ends the session, unless the client renews it. The store's
clock counts all of them, and "unknown" is a time that the store does not tell. A "kept"
claim stays for its --hold-for whatever becomes of its holder.

The last break of NAME is shown with its operator until the next break.`,
		Args: takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if err := pawl.CheckName(args[0]); err != nil {
				return err
			}
			var r seen
			err := s.reading(cmd.Context(), func(ctx context.Context, client *pawl.Client) (err error) {
				r, err = look(ctx, client, args[0])
				return err
			})
			switch {
			case err != nil:
				return err
			case asJSON:
				return json.NewEncoder(cmd.OutOrStdout()).Encode(viewOf(r))
			}
			return printShow(cmd.OutOrStdout(), r)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// look reads everything about a name.
func look(ctx context.Context, client *pawl.Client, name string) (r seen, err error) {
	if r.Resource, err = client.Show(ctx, name); err != nil {
		return r, err
	}
	if r.leader, err = leader(ctx, client, r.Resource); err != nil {
		return r, err
	}
	if r.Kind != "lock" {
		r.resized, err = client.Semaphore(name, 1).Resized(ctx)
	}
	if errors.Is(err, pawl.ErrUnsupported) { // the store has no semaphores
		err = nil
	}
	return r, err
}

func printShow(to io.Writer, r seen) error {
	w := new(bytes.Buffer)
	describeShow(w, r)
	_, err := w.WriteTo(to)
	return err
}

func describeShow(w *bytes.Buffer, r seen) {
	if r.Grace.On() {
		fmt.Fprintf(w, "%s: %s\n", printable(r.Name), graceText(r.Resource))
	}
	if r.Kind == "" {
		fmt.Fprintf(w, "%s: nobody holds it or waits for it\n", printable(r.Name))
	} else {
		fmt.Fprintf(w, "%s: %s\n", printable(r.Name), kind(r.Resource))
	}
	if r.resized > 0 {
		fmt.Fprintf(w, "an operator has set the number of permits to %d, whatever its users say\n", r.resized)
	}
	if r.leader != nil {
		fmt.Fprintf(w, "the leader announces %q\n", *r.leader)
	}
	switch b := r.Broken; {
	case b != nil && b.Token == 0: // nobody lost the lock
		fmt.Fprintf(w, "a waiter was last %s\n", printable(b.String()))
	case b != nil:
		fmt.Fprintf(w, "last %s (token %v)\n", printable(b.String()), b.Token)
	}
	if r.Kind != "" {
		table(w, showRows(r.Resource)) //nolint:errcheck // a buffer takes all
	}
}

func showRows(r pawl.Resource) [][]string {
	rows := [][]string{{"STATE", "PLACE", "WEIGHT", "LABEL", "OWNER", "TOKEN", "AGE", "HELD", "LEFT", "CLAIM"}}
	for _, p := range r.Holders {
		state := "granted"
		if p.Kept {
			state = "kept"
		}
		rows = append(rows, []string{
			state, "-", wants(p), printable(p.Label), printable(p.Owner), p.Token.String(), span(p.Age), span(p.Held), span(p.Left), printable(p.Claim),
		})
	}
	for i, p := range r.Waiters {
		rows = append(rows, []string{
			"waiting", strconv.Itoa(i + 1), wants(p), printable(p.Label), printable(p.Owner), "-", span(p.Age), "-", span(p.Left), printable(p.Claim),
		})
	}
	return rows
}
