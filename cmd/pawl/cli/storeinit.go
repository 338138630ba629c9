package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
)

func newStore(s *store) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Prepare a store",
		Args:  cobra.NoArgs,
		RunE:  verb(func(*cobra.Command, []string) error { return usageError("a verb is missing (try: pawl help store)") }),
	}
	cmd.AddCommand(newStoreInit(s))
	return cmd
}

func newStoreInit(s *store) *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Create what a store needs, or bring it up to this version",
		Long: `Create what the store needs, or bring it up to this version of pawl: the tables
and routines of a database, the file of SQLite.

Whoever may create tables does not need it: the first use does the same. Run it
as the owner of the database when the users of locks may not, with the --store
that they have; the documentation of pgengine and mysqlengine has the rights
that they need then. To run it again does no harm.

A Redis server that knows nothing of pawl may have forgotten what it had granted,
and grants nothing for the TTL of its first client. If you know that it is new,
this says so, and the first lock is granted at once; on a server that did forget,
two would hold it. It is refused where pawl has been already (64), and in a Redis
Cluster, where each node goes by its own age. Other stores need nothing.`,
		Args: takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			eng, err := s.open(cmd.Context())
			if err != nil {
				return err
			}
			defer soon(closeWithin, func() { eng.Close() }) //nolint:errcheck // the process ends
			text := "ready"
			err = ask(cmd.Context(), func(ctx context.Context) error {
				told, err := open.Init(ctx, eng)
				if told {
					text = "new: the first lock is granted at once"
				}
				return err
			})
			switch {
			case errors.Is(err, engine.ErrBusy):
				return &exitError{exitUsage, err}
			case err != nil:
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", eng.Caps().Name, text)
			return err
		}),
	}
}
