package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version of pawl",
		PersistentPreRunE: storeless("this verb asks no store"),
		Args:              takes(0, 0),
		RunE:              verb(func(cmd *cobra.Command, _ []string) error { return printVersion(cmd.OutOrStdout()) }),
	}
}

func printVersion(w io.Writer) error {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	_, err := fmt.Fprintf(w, "pawl %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
