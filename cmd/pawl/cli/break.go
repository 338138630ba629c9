package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

func newBreak(s *store) *cobra.Command {
	var yes bool
	var token uint64
	var opts pawl.BreakOptions
	cmd := &cobra.Command{
		Use:   "break NAME",
		Short: "Take a lock away from its holders",
		Long: `Take NAME away from all its holders. --token and --claim choose some holders, or one
waiter, as "pawl show" prints them. The next waiter gets NAME at once.

The holders learn of the break within a third of their TTL. A command under "pawl run"
then gets SIGTERM, and SIGKILL after its --grace. Until then the holders may still work,
beside the next holder. Only a resource that checks tokens is safe from that.

The operator's name stays in the store with --reason, and "pawl show" shows both.
Redlock and row mode keep neither: there --reason is refused with 64, and break says
that nobody learns the name.

Without --yes, break only names the parties that it would evict, and exits with 64.
A NAME without such a party is no error.`,
		Args: takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			set := cmd.Flags().Changed
			switch {
			case set("token") && set("claim"):
				return usageError("--token and --claim exclude each other")
			case set("token") && token == 0:
				return usageError("--token is 0: 1 or more is allowed")
			}
			if err := pawl.CheckName(args[0]); err != nil {
				return err
			}
			if err := checkReason(opts.Reason); err != nil {
				return err
			}
			opts.Token = fence.Token(token)
			return s.reading(cmd.Context(), func(ctx context.Context, client *pawl.Client) error {
				return breakLock(ctx, client, args[0], opts, yes, cmd.OutOrStdout())
			})
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&yes, "yes", false, "do it")
	f.Uint64Var(&token, "token", 0, "only the holders with this token")
	f.StringVar(&opts.Claim, "claim", "", "only this claim, which may wait")
	f.StringVar(&opts.Reason, "reason", "", "the reason, which the store keeps")
	return cmd
}

// checkReason checks --reason without a store.
func checkReason(reason string) error {
	switch {
	case len(reason) > pawl.MaxName:
		return usageError("--reason has %d bytes: at most %d are allowed", len(reason), pawl.MaxName)
	case !utf8.ValidString(reason), strings.ContainsFunc(reason, unicode.IsControl):
		return usageError("--reason is %q: UTF-8 without control characters is allowed", reason)
	}
	return nil
}

// breakLock refuses a reason that the store would not keep. The operator can break without a reason a
// moment later. A reason that is dropped is missed only when somebody asks for it.
func breakLock(ctx context.Context, client *pawl.Client, name string, opts pawl.BreakOptions, yes bool, w io.Writer) error {
	caps := client.Caps()
	keepsNote := caps.RefuseFeature(engine.FeatureValues) == nil
	if opts.Reason != "" && !keepsNote {
		return usageError("break %q: the store %s keeps no --reason: nothing was done: leave the reason out", name, caps.Name)
	}
	r, err := client.Show(ctx, name)
	if err != nil {
		return err
	}
	victims := chosen(r, opts)
	switch {
	case len(victims) == 0:
		return nobody(w, r, opts)
	case !yes:
		for _, p := range victims {
			fmt.Fprintf(w, "would evict %s\n", describe(p))
		}
		return usageError("break %q: nothing was done: say --yes to evict", name)
	}
	evicted, err := client.Break(ctx, name, opts)
	for _, p := range evicted {
		fmt.Fprintf(w, "evicted %s\n", describe(p))
	}
	for _, p := range victims {
		if err == nil && !slices.ContainsFunc(evicted, func(e pawl.Party) bool { return e.Claim == p.Claim }) {
			fmt.Fprintf(w, "had left already: %s\n", describe(p))
		}
	}
	if len(evicted) > 0 && !keepsNote {
		news("the store %s does not keep the name of the operator who broke %q: holders learn of the break alone", caps.Name, name)
	}
	if err != nil || !slices.ContainsFunc(evicted, works) {
		return err
	}
	_, err = fmt.Fprintln(w, "a holder learns of the break within a third of its TTL, and its command may work for --grace longer")
	return err
}

// works reports whether a party may work until it learns of its eviction. A waiter does not work.
// Nor does the holder of a name that is only kept.
func works(p pawl.Party) bool { return p.Token != 0 && !p.Kept }

// chosen are the parties that the options name.
func chosen(r pawl.Resource, opts pawl.BreakOptions) (parties []pawl.Party) {
	for _, p := range slices.Concat(r.Holders, r.Waiters) {
		switch {
		case opts.Claim != "" && p.Claim != opts.Claim:
		case opts.Claim == "" && p.Token == 0:
		case opts.Token != 0 && p.Token != opts.Token:
		default:
			parties = append(parties, p)
		}
	}
	return parties
}

func nobody(w io.Writer, r pawl.Resource, opts pawl.BreakOptions) error {
	text := "nobody holds it"
	switch {
	case opts.Token != 0:
		text += fmt.Sprintf(" with token %v", opts.Token)
	case opts.Claim != "":
		text = "nobody has the claim " + printable(opts.Claim)
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", printable(r.Name), text)
	return err
}

func describe(p pawl.Party) string {
	switch {
	case p.Token == 0:
		return fmt.Sprintf("%s (waiting for %s)", printable(p.Label), lasting(p.Age, ""))
	case p.Kept:
		return fmt.Sprintf("%s (token %v, kept for %s)", printable(p.Label), p.Token, lasting(p.Left, " more"))
	}
	return fmt.Sprintf("%s (token %v, held for %s, session ends in %s)", printable(p.Label), p.Token, lasting(p.Held, ""), lasting(p.Left, " unless renewed"))
}

// lasting prints a duration in a sentence.
func lasting(d time.Duration, more string) string {
	if d < 0 {
		return "an unknown time"
	}
	return span(d) + more
}
