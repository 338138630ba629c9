package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // for machines without time zones, as Windows and small images are

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/readable"
	"github.com/pawl-go/pawl/id/snowflake"
)

// idOptions are the flags of the verbs that make IDs.
type idOptions struct {
	store    *store
	serving  bool // the process makes IDs for a long time, and not once
	dbs      []string
	forgets  bool
	step     int64
	stepped  func() bool // whether the user gave --step
	layout   layoutFlags
	template templateFlags
	fields   []string

	fieldValues map[string]string
	orDB        bool // the numbers can be in a database in place of a store
}

// The names of flags that several kinds have.
const (
	flagDB       = "db"
	flagForgets  = "allow-forgetting"
	flagStep     = "step"
	flagField    = "field"
	flagTemplate = "template"
	flagZone     = "zone"
)

var layoutNames = []string{"bits", "unit", "epoch"}

// addFlags adds the flags of these names. The numbers can be in this database.
func (o *idOptions) addFlags(cmd *cobra.Command, names []string, database string) {
	f := cmd.Flags()
	for _, name := range names {
		switch name {
		case flagDB:
			f.StringArrayVar(&o.dbs, flagDB, nil, "URL of "+database+" that makes the numbers")
		case flagForgets:
			f.BoolVar(&o.forgets, flagForgets, false, "accept a --store that may lose its last writes: IDs may repeat then")
		case flagStep:
			f.Int64Var(&o.step, flagStep, 0, "how many databases there may ever be: the difference between two numbers of one database")
			o.stepped = func() bool { return f.Changed(flagStep) }
		case flagField:
			f.StringArrayVar(&o.fields, flagField, nil, "KEY=VALUE of a field of the template")
		case flagTemplate:
			o.template.add(cmd)
		case layoutNames[0]:
			o.layout.add(cmd)
		}
	}
}

// complete checks the flags without a store.
func (o *idOptions) complete(k idKind) error {
	switch {
	case !k.stored && o.store.given():
		return usageError("--store is not for %s: %s", k.name, k.instead)
	case k.stored && len(o.dbs) > 0 && o.store.given() && !k.marked:
		return usageError("--store and --db exclude each other: the numbers are in one of them")
	case o.forgets && len(o.dbs) > 0 && !k.marked:
		return usageError("--%s is for --store, and the numbers are in --db", flagForgets)
	case k.needsDB && len(o.dbs) == 0:
		return usageError("--db is missing: the URL of %s", k.database)
	case !k.severalDBs && len(o.dbs) > 1:
		return usageError("--db is given %d times: %s is in one place", len(o.dbs), k.name)
	}
	switch stepped := k.severalDBs && o.stepped(); {
	case k.severalDBs && len(o.dbs) > 1 && !stepped:
		return usageError("--step is missing: how many databases there may ever be, %d or more, which never changes", len(o.dbs))
	case stepped:
		if err := inRange("--step", o.step, int64(len(o.dbs)), 1_000_000); err != nil {
			return err
		}
	}
	o.orDB = slices.Contains(k.flags, flagDB) && !k.needsDB
	o.fieldValues = make(map[string]string)
	for _, text := range o.fields {
		key, value, found := strings.Cut(text, "=")
		if _, twice := o.fieldValues[key]; !found || key == "" || twice {
			return usageError("--field is %q: KEY=VALUE is allowed, once for each KEY", text)
		}
		o.fieldValues[key] = value
	}
	for _, name := range k.flags {
		switch name {
		case flagTemplate:
			if o.template.text == "" {
				return usageError(`--template is missing, as "ORD-{date:20060102}-{n:7}-{digit}"`)
			}
			if err := o.checkTemplate(); err != nil {
				return err
			}
		case layoutNames[0]:
			if _, err := o.layout.layout(); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkTemplate checks the template and its fields.
func (o *idOptions) checkTemplate() error {
	zone, err := o.template.location()
	if err != nil {
		return err
	}
	format, err := readable.New(o.template.text, &readable.Options{Counter: func(string) id.Generator[int64] { return nil }, Zone: zone})
	if err != nil {
		return err
	}
	if _, err = format.Generator(o.fieldValues); err != nil {
		return fmt.Errorf("--%s: %w", flagField, err)
	}
	return nil
}

// layoutFlags say how a snowflake is made.
type layoutFlags struct {
	bits, epoch string
	unit        time.Duration
}

func (l *layoutFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&l.bits, layoutNames[0], "41/10/12", "the bits of time, worker and sequence of a snowflake")
	f.DurationVar(&l.unit, layoutNames[1], time.Millisecond, "the unit of the time of a snowflake")
	f.StringVar(&l.epoch, layoutNames[2], "2024-01-01T00:00:00Z", "time 0 of a snowflake")
}

// layout returns the layout if it is right.
func (l *layoutFlags) layout() (made snowflake.Layout, err error) {
	parts := strings.Split(l.bits, "/")
	for i, to := range []*int{&made.TimeBits, &made.WorkerBits, &made.SeqBits} {
		if len(parts) == 3 {
			*to, err = strconv.Atoi(parts[i])
		}
		if len(parts) != 3 || err != nil {
			return made, usageError("--bits is %q: three numbers that add up to 63 are allowed, as 41/10/12", l.bits)
		}
	}
	if made.TimeBits == 0 { // package snowflake takes 0 for the default
		return made, usageError("--bits is %q: the time has 1 bit or more", l.bits)
	}
	if made.Unit = l.unit; l.unit < time.Millisecond || l.unit > time.Second || l.unit%time.Millisecond != 0 {
		return made, usageError("--unit is %v: whole milliseconds from 1ms to 1s are allowed", l.unit)
	}
	if made.Epoch, err = time.Parse(time.RFC3339, l.epoch); err != nil || made.Epoch.IsZero() {
		return made, usageError("--epoch is %q: a time as 2024-01-01T00:00:00Z is allowed", l.epoch)
	}
	if made.Epoch.After(time.Now()) {
		return made, usageError("--epoch is %s, which is in the future", l.epoch)
	}
	_, err = made.Decompose(0)
	return made, err
}

// templateFlags say how a readable ID is made.
type templateFlags struct{ text, zone string }

func (t *templateFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.text, flagTemplate, "", `how a readable ID is made, as "ORD-{date:20060102}-{n:7}-{digit}"`)
	cmd.Flags().StringVar(&t.zone, flagZone, "UTC", "where the day of a readable ID begins, as Asia/Shanghai")
}

// location refuses the zone of the machine, because all machines have to use one zone.
func (t *templateFlags) location() (*time.Location, error) {
	zone, err := time.LoadLocation(t.zone)
	if err != nil || zone == time.Local || t.zone == "" {
		return nil, usageError("--zone is %q: the name of a time zone is allowed, as UTC or Asia/Shanghai", t.zone)
	}
	return zone, nil
}
