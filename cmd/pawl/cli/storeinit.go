package cli

import (
	"fmt"

	"github.com/spf13/cobra"
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
and routines of a database, the file of SQLite. Other stores need nothing.

Whoever may create tables does not need it: the first use does the same. Run it
as the owner of the database when the users of locks may not, with the --store
that they have; the documentation of pgengine and mysqlengine has the rights
that they need then. To run it again does no harm.`,
		Args: takes(0, 0),
		RunE: verb(func(cmd *cobra.Command, _ []string) error {
			eng, err := s.open(cmd.Context())
			if err != nil {
				return err
			}
			defer soon(closeWithin, func() { eng.Close() }) //nolint:errcheck // the process ends
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ready\n", eng.Caps().Name)
			return err
		}),
	}
}
