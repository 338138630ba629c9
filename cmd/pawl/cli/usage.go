package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// takes checks the number of arguments. The error shows the right form; the library's error does
// not.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if n := len(args); n < least || n > most {
			return usageError("the number of arguments is %d: the form is: %s", n, cmd.UseLine())
		}
		return nil
	}
}

// noEmptyFlag refuses a text that is empty. A variable that is not set must not choose the default: another database, or no TLS.
func noEmptyFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		texts := []string{f.Value.String()}
		if list, is := f.Value.(pflag.SliceValue); is {
			if texts = list.GetSlice(); len(texts) == 0 {
				texts = []string{""}
			}
		}
		if err == nil && slices.Contains(texts, "") {
			err = usageError("--%s is empty", f.Name)
		}
	})
	return err
}

// storeless refuses --store for verbs without a store, because the operator means another place than these verbs look at. PAWL_STORE may be
// set for other verbs.
func storeless(instead string) func(*cobra.Command, []string) error {
	return verb(func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("store") {
			_, verbs, _ := strings.Cut(cmd.CommandPath(), " ")
			return usageError("--store is not for %s: %s", verbs, instead)
		}
		return nil
	})
}

// unixOnly is a verb of which other systems have only the name.
func unixOnly(use, short string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short + " (Unix only)",

		DisableFlagParsing: true, // the flags are not known here
		RunE: verb(func(*cobra.Command, []string) error {
			return &exitError{exitUsage, fmt.Errorf("%s needs a Unix system", use)}
		}),
	}
}

// inRange refuses a value of a flag that is out of its range. Libraries name their own option, and take zero for the default.
func inRange[T cmp.Ordered](flag string, is, least, most T) error {
	if is >= least && is <= most { // NaN is not
		return nil
	}
	return usageError("%s is %v: %v to %v are allowed", flag, is, least, most)
}

var plainName = regexp.MustCompile("^[A-Za-z0-9_]+$")

// cutName splits NAME=URL. A wrong text is not repeated, because a URL without NAME= may have a password.
func cutName(flag, form, text string) (name, location string, err error) {
	name, location, _ = strings.Cut(text, "=")
	if !plainName.MatchString(name) {
		return "", "", usageError("%s: %s is allowed, with a NAME of letters, digits and underscores", flag, form)
	}
	return name, location, nil
}

// wrongFlag names the help that has the flags of a verb.
func wrongFlag(cmd *cobra.Command, err error) error {
	program, verbs, _ := strings.Cut(cmd.CommandPath(), " ")
	return usageError("%w (try: %s)", err, strings.TrimSpace(program+" help "+verbs))
}

// strictHelp makes wrong usage of the library's own verbs an error: by itself the library shows its
// help and succeeds.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if about, rest, err := root.Find(args); err != nil || about.HasSubCommands() && len(rest) > 0 {
					return usageError("there is no help about %q (try: pawl help)", strings.Join(args, " "))
				}
				return nil
			}
		case "completion":
			cmd.RunE = verb(func(*cobra.Command, []string) error {
				return usageError("the name of a shell is missing (try: pawl help completion)")
			})
		}
	}
}
