package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pawl-go/pawl"
)

// label tells an operator who this is: the host, the process, and what it
// does, without arguments, in which there may be secrets.
func label(command string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	text := printable(strings.ToValidUTF8(fmt.Sprintf("%s pid %d: %s", host, os.Getpid(), filepath.Base(command)), "?"))
	return strings.ToValidUTF8(text[:min(len(text), pawl.MaxName)], "")
}
