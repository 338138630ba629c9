//go:build !unix

package cli

import (
	"io"

	"github.com/spf13/cobra"
)

const guardVerb = "__guard"

func guardMain() int { return exitUsage }

// newRun says that this system lacks process groups and signals. Without them run could not keep
// its promises.
func newRun(*store) *cobra.Command { return unixOnly("run", "Run a command under a lock") }

// newSlot needs the same.
func newSlot(*store) *cobra.Command {
	return unixOnly("slot", "Run a command with a number of its own")
}

// newElect needs the same.
func newElect(*store) *cobra.Command { return unixOnly("elect", "Keep one command running in a fleet") }

// newJoin needs the same.
func newJoin(*store) *cobra.Command { return unixOnly("join", "Run a server as a member of a group") }

// newIdemRun needs the same.
func newIdemRun(*store, *string) *cobra.Command {
	return unixOnly("run", "Run a command once for a key")
}

func terminalWidth(io.Writer) (int, bool) { return 0, false }
