// Command pawl runs programs under distributed locks and shows and breaks
// locks. See `pawl help`.
package main

import (
	"os"

	"github.com/pawl-go/pawl/cmd/pawl/cli"
)

func main() { os.Exit(cli.Main()) }
