package cli

import (
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/pawl-go/pawl"
)

// label names this process to an operator: the host, the process id, and its work. The work leaves
// out the arguments of a command, because they may have secrets.
func label(does string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	text := printable(strings.ToValidUTF8(fmt.Sprintf("%s pid %d: %s", host, os.Getpid(), does), "?"))
	return strings.ToValidUTF8(text[:min(len(text), pawl.MaxName)], "")
}

// operator names the user of a verb in the note that the store keeps for operators.
func operator() string {
	if u, err := user.Current(); err == nil {
		return label("user " + u.Username)
	}
	return label("pawl")
}
