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
		Short: "Create the tables or the file of a store, or upgrade them",
		Long: `Create the parts of the store, or upgrade them to this version of pawl. The parts are
the tables and routines of a database, or the file of SQLite.

A user that may create tables does not need this command: the first use creates them.
If the users of locks may not create tables, run the command as the owner of the
database, with their --store. The pages docs/stores/postgresql.md and mariadb.md of
pawl list the rights that the users then need. To run the command again does no harm.
An upgrade that changes the tables is refused (64) while sessions live.

A Redis server, or a bucket of NATS, that knows nothing of pawl may have forgotten its
grants. So that store grants nothing for the TTL of its first client. If you know that the
store is new, say so by this command: then the first lock is granted at once. On a store
that did forget, two clients would hold that lock. The command is refused where pawl has
been used (64), and in a Redis Cluster, where each node goes by its own age. A redlock: URL
marks all its nodes. A node that did not answer (69) is marked later alone, by its redis:
URL. etcd and ZooKeeper need nothing.`,
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
			case errors.Is(err, engine.ErrUsed):
				return &exitError{exitUsage, err}
			case err != nil:
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", eng.Caps().Name, text)
			return err
		}),
	}
}
