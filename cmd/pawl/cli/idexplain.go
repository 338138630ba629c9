package cli

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/id/readable"
	"github.com/pawl-go/pawl/id/snowflake"
)

func newIDExplain() *cobra.Command {
	var layout layoutFlags
	var template templateFlags
	cmd := &cobra.Command{
		Use:   "explain ID",
		Short: "Print the parts of an ID",
		Long: `Print the parts of an ID, by its form. Of a UUID: the version, and the time if there is
one. Of a number, which is taken for a snowflake: the time, worker and sequence number.
With --template: the parts of a readable ID, whose check digits have to be right.

A snowflake does not tell its layout: give the --bits, --unit and --epoch of its maker.
A text of no such form is refused (64).`,
		Example: `  pawl id explain 019aa7f2-9c4c-7e1c-8f5e-3d1a6f0c2b47
  pawl id explain --template 'ORD-{date:20060102}-{n:7}-{digit}' ORD-20261122-0000123-8`,
		Args: takes(1, 1),

		PersistentPreRunE: storeless("this verb asks no store"),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			rows, err := explain(args[0], &layout, &template)
			if err != nil {
				return err
			}
			return printRows(cmd.OutOrStdout(), rows)
		}),
	}
	layout.add(cmd)
	template.add(cmd)
	return cmd
}

// explain returns the parts of an ID, each with its name.
func explain(text string, layout *layoutFlags, template *templateFlags) ([][]string, error) {
	made, err := layout.layout()
	if err != nil {
		return nil, err
	}
	zone, err := template.location()
	if err != nil {
		return nil, err
	}
	number, notNumber := strconv.ParseInt(text, 10, 64)
	switch {
	case template.text != "":
		return explainReadable(text, template.text, zone)
	case uuid.Validate(text) == nil:
		return explainUUID(uuid.MustParse(text)), nil
	case notNumber == nil && strings.Trim(text, "0123456789") == "":
		return explainSnowflake(number, made)
	}
	return nil, usageError("the ID %.80q is neither a UUID nor a number from 0 to 9223372036854775807; for a readable ID say --template", text)
}

func explainReadable(text, template string, zone *time.Location) ([][]string, error) {
	format, err := readable.New(template, &readable.Options{Zone: zone})
	if err != nil {
		return nil, err
	}
	parts, err := format.Parse(text)
	if err != nil {
		return nil, err
	}
	rows := [][]string{{"kind", "readable"}}
	if !parts.Time.IsZero() {
		rows = append(rows, []string{"time", stamp(parts.Time)})
	}
	rows = append(rows, []string{"number", strconv.FormatInt(parts.Number, 10)})
	for _, name := range slices.Sorted(maps.Keys(parts.Fields)) {
		rows = append(rows, []string{"field " + name, parts.Fields[name]})
	}
	if parts.Check != "" {
		rows = append(rows, []string{"check", parts.Check})
	}
	return rows, nil
}

func explainUUID(u uuid.UUID) [][]string {
	rows := [][]string{{"kind", "UUID"}}
	switch {
	case u == uuid.Nil:
		return append(rows, []string{"version", "none: all bits are 0"})
	case u == uuid.Max:
		return append(rows, []string{"version", "none: all bits are 1"})
	case u.Variant() != uuid.RFC4122:
		return append(rows, []string{"version", "none: its variant is " + u.Variant().String()})
	}
	rows = append(rows, []string{"version", strconv.Itoa(int(u.Version()))})
	switch u.Version() {
	case 1, 2, 6, 7:
		rows = append(rows, []string{"time", stamp(time.Unix(u.Time().UnixTime()).UTC())})
	}
	return rows
}

func explainSnowflake(number int64, layout snowflake.Layout) ([][]string, error) {
	parts, err := layout.Decompose(number)
	if err != nil {
		return nil, err
	}
	return [][]string{
		{"kind", "snowflake"}, {"time", stamp(parts.Time)}, {"worker", strconv.Itoa(parts.Worker)},
		{"sequence", strconv.FormatInt(parts.Sequence, 10)}, {"layout", layout.String()},
	}, nil
}

// stamp prints a time to the ms, with its zone.
func stamp(t time.Time) string { return t.Format("2006-01-02T15:04:05.000Z07:00") }

func printRows(w io.Writer, rows [][]string) error {
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
	}
	return table(w, rows)
}
