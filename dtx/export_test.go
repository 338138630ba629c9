package dtx

// SetStep calls f at each step of a transaction that lasts over a crash.
func SetStep(f func(name string, branch int)) { step = f }

// Implicit reports whether MySQL and MariaDB may commit before a statement.
func Implicit(statement string) bool {
	return implicit.MatchString(statement) && !temporary.MatchString(statement)
}
