package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

func newBreak(s *store) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "break NAME",
		Short: "Take a lock away from its holders",
		Long: `Take NAME away from all who hold it now; who waits next gets it at once.

The holders are told, but learn of it only within a third of their TTL: until
then they may still work, beside the next holder. Only what checks tokens is
safe from that. A command under "pawl run" is then stopped.

Without --yes it only says whom it would evict, and exits with 64. Nobody to
evict is no error.`,
		Args: takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if err := pawl.CheckName(args[0]); err != nil {
				return err
			}
			return s.within(cmd.Context(), func(ctx context.Context, eng engine.Engine) error {
				return ask(ctx, func(ctx context.Context) error {
					return breakLock(ctx, eng, args[0], yes, cmd.OutOrStdout())
				})
			})
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}

func breakLock(ctx context.Context, eng engine.Engine, name string, yes bool, w io.Writer) error {
	r, err := eng.Show(ctx, name)
	if err != nil {
		return err
	}
	granted, _ := split(r)
	if len(granted) == 0 {
		_, err := fmt.Fprintf(w, "%s: nobody holds it\n", printable(name))
		return err
	}
	if !yes {
		for _, c := range granted {
			fmt.Fprintf(w, "would evict %s\n", describe(c))
		}
		return usageError("break %q: nothing was done: say --yes to evict", name)
	}
	if err := evict(ctx, eng, name, granted, w); err != nil {
		return fmt.Errorf("break %q: %w", name, err)
	}
	_, err = fmt.Fprintln(w, "a holder learns of it within a third of its TTL and may work until then")
	return err
}

func describe(c engine.ClaimInfo) string {
	return fmt.Sprintf("%s (token %v, age %s)", printable(c.Label), c.Token, age(c))
}

// evict leaves the claims of others, which takes a session of one's own.
func evict(ctx context.Context, eng engine.Engine, name string, claims []engine.ClaimInfo, w io.Writer) (err error) {
	session, err := eng.Open(ctx, engine.SessionOptions{TTL: max(defaultTTL, eng.Caps().MinTTL), Label: label("break")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close(ctx)) }()
	for _, c := range claims {
		switch err := session.Leave(ctx, name, c.ID); {
		case errors.Is(err, engine.ErrGone):
			fmt.Fprintf(w, "had left already: %s\n", describe(c))
		case err != nil:
			return err
		default:
			fmt.Fprintf(w, "evicted %s\n", describe(c))
		}
	}
	return nil
}
