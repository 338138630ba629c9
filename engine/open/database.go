package open

import (
	"net/url"
	"strconv"
)

const (
	// leaseConns is how many connections lease mode needs, however many locks a process holds or
	// waits for. PostgreSQL needs one more to listen, and MariaDB one more for heartbeats. With
	// more connections, commits share flushes.
	leaseConns = 4
	// rowConns is how many connections row mode has unless the URL sets a number. Each held lock,
	// and each wait, takes one.
	rowConns = 32
)

// mode reads whether a database keeps locks in row mode, and by how many connections. Some
// parameters are for lease mode only.
func mode(u *url.URL, lease ...string) (row bool, conns int, err error) {
	switch mode := u.Query().Get("mode"); mode {
	case "", "lease":
		conns, err = connections(u, leaseConns)
		return false, conns, err
	case "row":
		conns, err = connections(u, rowConns)
		if err == nil {
			err = only(u, "row", lease...)
		}
		return true, conns, err
	default:
		return false, 0, wrong("the parameter mode is lease or row")
	}
}

// connections reads how many connections there may be.
func connections(u *url.URL, unsaid int) (int, error) {
	if !u.Query().Has("connections") {
		return unsaid, nil
	}
	n, err := strconv.Atoi(u.Query().Get("connections"))
	if err != nil || n < 2 || n > 10000 {
		return 0, wrong("the parameter connections is a number from 2 to 10000")
	}
	return n, nil
}

// only refuses parameters that are for the other mode.
func only(u *url.URL, mode string, others ...string) error {
	for _, name := range others {
		if u.Query().Has(name) {
			return wrong("the parameter %s is not for mode=%s", name, mode)
		}
	}
	return nil
}
