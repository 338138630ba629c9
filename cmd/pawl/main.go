// Command pawl runs programs under distributed locks, shows and breaks
// locks, and makes IDs. See `pawl help`.
package main

import (
	"os"

	"github.com/pawl-go/pawl/cmd/pawl/cli"
)

func main() { os.Exit(cli.Main()) }
