//go:build !unix

package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

const guardVerb = "__guard"

func guardMain() int { return exitUsage }

// newRun says that there are no process groups and signals here, without which
// run could not keep its promises.
func newRun(*store) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run a command under a lock (Unix only)",
		RunE: verb(func(*cobra.Command, []string) error {
			return &exitError{exitUsage, fmt.Errorf("run needs a Unix system")}
		}),
	}
}

func terminalWidth(io.Writer) (int, bool) { return 0, false }
