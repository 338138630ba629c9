package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

func newShow(s *store) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show who holds a name and who waits for it",
		Long: `Show every claim on NAME, holders first, then the queue in its order.

AGE is since the claim was made, and "-" where the store does not tell.`,
		Args: takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			r, err := s.show(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(viewOf(r))
			}
			if len(r.Claims) == 0 {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: nobody holds it or waits for it\n", printable(r.Name))
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", printable(r.Name), kind(r))
			return table(cmd.OutOrStdout(), showRows(r))
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func (s *store) show(ctx context.Context, name string) (r engine.Resource, err error) {
	if err := pawl.CheckName(name); err != nil {
		return r, err
	}
	err = s.within(ctx, func(ctx context.Context, eng engine.Engine) error {
		return ask(ctx, func(ctx context.Context) (err error) {
			r, err = eng.Show(ctx, name)
			return err
		})
	})
	return r, err
}

func showRows(r engine.Resource) [][]string {
	rows := [][]string{{"STATE", "PLACE", "WEIGHT", "LABEL", "OWNER", "TOKEN", "AGE"}}
	granted, waiting := split(r)
	for _, c := range granted {
		rows = append(rows, []string{
			"granted", "-", weight(r, c), printable(c.Label), printable(c.Owner), c.Token.String(), age(c),
		})
	}
	for i, c := range waiting {
		rows = append(rows, []string{
			"waiting", strconv.Itoa(i + 1), weight(r, c), printable(c.Label), printable(c.Owner), "-", age(c),
		})
	}
	return rows
}
