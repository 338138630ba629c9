//go:build unix

package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
)

const slotHelp = `Wait for one of the -n slots of NAME, run CMD with its number, free the slot and
pass on the exit code of CMD. A number has one holder at a time: a worker id, a
shard, a partition. CMD finds in its environment, beside the variables of "pawl run",

  PAWL_SLOT   the number, 0 to n - 1: that of --prefer if it is free,
              else the smallest free number
  PAWL_TOKEN  the fencing token: each later holder of the number has a larger one

All users of NAME must say the same -n. When all slots are taken: first come, first
served. The slot of a machine that died is free within --ttl and a second. CMD does
not outlive its slot. CMD is run, stopped and passed signals as by "pawl run".

"pawl show pawl:slots/NAME" shows the holders, and "pawl break pawl:slots/NAME --yes"
takes their slots away. Redlock and row mode have no slots: 64. The exit codes are those
of "pawl run".`

// slotNames begin the names of the permits of slots.
const slotNames = "pawl:slots/"

func newSlot(s *store) *cobra.Command {
	o := &runOptions{store: s, slots: true}
	cmd := &cobra.Command{
		Use:     "slot [flags] NAME -- CMD [ARG...]",
		Short:   "Run a command with a number of its own",
		Long:    slotHelp,
		Example: "  pawl slot -n 8 shards -- sh -c './worker --shard=$PAWL_SLOT'\n  pawl slot -n 8 --prefer 3 --try shards -- ./worker",

		DisableFlagsInUseLine: true,
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if err := o.completeSlot(cmd, args); err != nil {
				return err
			}
			return o.run(cmd.Context())
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // arguments after NAME belong to CMD
	f.IntVarP(&o.permits, "slots", "n", 0, "how many slots NAME has, 1 to 4096; all users of NAME must say the same number")
	f.IntVar(&o.prefer, "prefer", 0, "the number to take if it is free (default: the smallest)")
	o.waitFlags(cmd)
	o.commonFlags(cmd)
	return cmd
}

// completeSlot checks the options without a store.
func (o *runOptions) completeSlot(cmd *cobra.Command, args []string) error {
	if err := o.split(cmd, args); err != nil {
		return err
	}
	o.preferred = cmd.Flags().Changed("prefer")
	switch {
	case !cmd.Flags().Changed("slots"):
		return usageError("-n is missing: the number of slots of %q", o.name)
	case o.permits < 1 || o.permits > 4096:
		return usageError("-n is %d: 1 to 4096 are allowed", o.permits)
	case o.preferred && (o.prefer < 0 || o.prefer >= o.permits):
		return usageError("--prefer is %d: 0 to %d are allowed", o.prefer, o.permits-1)
	}
	if err := o.completeWait(cmd); err != nil {
		return err
	}
	return o.completeCommon(cmd)
}

// takeSlot gets a slot, and tells the command its number.
func (q *acquisition) takeSlot(ctx context.Context, c *pawl.Client) (*pawl.Lease, error) {
	slots := c.Slots(q.name, q.permits)
	if q.preferred {
		slots = slots.Prefer(q.prefer)
	}
	take := slots.Take
	if q.try {
		take = slots.TryTake
	}
	slot, err := take(ctx)
	if err != nil {
		return nil, err
	}
	q.number = slot.Number()
	return slot.Lease, nil
}
