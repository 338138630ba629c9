package sqlengine

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/pawl-go/pawl/engine"
)

//go:embed rules.sql
var rulesText string

var rules = template.Must(template.New("rules").Funcs(template.FuncMap{
	"format": engine.Format, "many": func() int { return many }, "uncounted": func() int64 { return 1 << 62 },
}).Parse(rulesText))

// many is from how many holders on their sum is noted. To count fewer takes less time than to note it.
// Tests change it.
var many = 50

// Dialect is the language of a server, as rules.sql asks for it. Each method returns a piece of
// SQL. The arguments are names of parameters, variables and columns, or expressions. Typed names
// come in pairs of type and name.
type Dialect interface {
	// P is what every name begins with.
	P() string
	// Text is the type of parameters that are text.
	Text() string
	// Blob is the type of bytes.
	Blob() string
	// Key is the type of columns that are text, compared byte by byte.
	Key(length int) string

	// Table begins a table, which a crash may have forgotten or not.
	Table(forgets bool) string
	// TableEnd ends it.
	TableEnd() string
	// Inside is an index that is defined inside its table.
	Inside(name, on string) string
	// After is an index that is defined after its table.
	After(name, table, on string) string

	// Proc begins a procedure. The results begin with r_.
	Proc(name string, typed ...string) string
	// Rows begins a procedure that returns rows: its first parameter, then the columns.
	Rows(name string, typed ...string) string
	// Vars declares variables and begins the body.
	Vars(typed ...string) string
	// Return comes before the SELECT of the rows to return.
	Return() string
	// End ends the procedure.
	End() string
	// CallStep calls the procedure step, with the variables of its results last.
	CallStep(args ...string) string
	// Quick may do a step of a resource where nobody else is in fewer
	// statements, and then returns.
	Quick() string
	// Set begins an assignment.
	Set() string
	// Do begins the body of a WHILE.
	Do() string
	// Loop follows the END of a WHILE.
	Loop() string

	// Now is the time at this moment on the server's clock, in µs.
	Now() string
	// Grace is the time until which nothing is given out. Until a client has begun the grace, that is the grace from now on.
	Grace() string
	// Writable fails where the server must not be written to.
	Writable() string
	// Lock waits until no other step of this name goes on, and sets the
	// variable to the number of the lock.
	Lock(name, slot string) string
	// ShareSession waits while the session is being ended, and keeps it from that.
	ShareSession(id string) string
	// OwnSession waits until no Enter of the session goes on.
	OwnSession(id string) string
	// Mint sets the variable to the next token.
	Mint(into, slot, now string) string
	// Since is when the grace began, or the server started, or 0: nobody has begun it.
	Since() string
	// Boot is Booted for a client that opens a session in which holders believe for so long.
	Boot(now, grace, since, belief string) string
	// Booted finds out whether the server has forgotten, and sets the variables to
	// the time after that, to Grace and to Since.
	Booted(now, grace, since string) string
	// Durable has the transaction survive a crash once it is answered: always, or as
	// to tables that a crash may forget.
	Durable(always bool) string
	// Alone returns if somebody else does the same, unless it is forced.
	Alone(force string) string
	// Listens notes how the client of a session is told, if it is.
	Listens(session, channel string) string
	// Tell tells a session of a claim.
	Tell(session, id, token, gone string) string

	// Arg is the nth parameter of a query.
	Arg(n int) string
	// Call calls a procedure and returns its results as a row.
	Call(name string, params int) string
	// CallRows calls a procedure that returns rows.
	CallRows(name string) string
}

// Typed returns those of the typed names that begin with prefix, each in a format that has the name
// first and the type second.
func Typed(typed []string, prefix, format string) (all []string) {
	for i := 0; i < len(typed); i += 2 {
		if strings.HasPrefix(typed[i+1], prefix) {
			all = append(all, fmt.Sprintf(format, typed[i+1], typed[i]))
		}
	}
	return all
}

// Routine is a procedure of the rules.
type Routine struct{ Name, Text string }

// Rules returns what creates the tables and the procedures of a server. The
// latter call those before them.
func Rules(d Dialect) (tables []string, routines []Routine) {
	for _, table := range strings.Split(render(d, "tables"), ";") {
		if table = strings.TrimSpace(table); table != "" {
			tables = append(tables, table)
		}
	}
	for _, name := range []string{"fits", "advance", "step", "finish", "start", "put", "renew"} {
		routines = append(routines, Routine{name, render(d, name)})
	}
	return tables, routines
}

func render(d Dialect, name string) string {
	var b strings.Builder
	if err := rules.ExecuteTemplate(&b, name, d); err != nil {
		panic(err) // the text is ours
	}
	return strings.TrimSpace(b.String())
}
