package sqlengine

import (
	_ "embed"
	"strings"
	"text/template"
)

//go:embed rules.sql
var rulesText string

var rules = template.Must(template.New("rules").Parse(rulesText))

// Dialect is the language of a server, as rules.sql asks for it. Its methods
// return pieces of SQL.
type Dialect interface {
	P() string                     // what every name begins with
	Text() string                  // the type of parameters that are text
	Blob() string                  // the type of bytes
	Key(length int) string         // the type of columns that are text, compared byte by byte
	Table() string                 // creates a table that may be forgotten
	Logged() string                // creates one that may not
	TableEnd() string              // of the first
	LoggedEnd() string             // of the second
	Inside(name, on string) string // an index, inside the definition of its table
	After(name, table, on string) string

	Proc(name string, typed ...string) string // begins a procedure; results begin with r_
	Vars(typed ...string) string              // its variables, and BEGIN
	End() string
	Rows(name string, typed ...string) string // begins one that returns rows, see Return
	Return() string
	EndRows() string
	Set() string  // begins an assignment
	Do() string   // begins the body of a WHILE
	Loop() string // follows the END of a WHILE

	Now() string                     // µs on the server's clock, at this moment
	Grace() string                   // until when nothing is given out
	Lock(name, slot string) string   // no other step of this name goes on, and where that is noted
	ShareSession(name string) string // the session is not ended meanwhile
	OwnSession(name string) string   // no Enter of it goes on
	Mint(into, slot, now string) string
	Boot(now, ttl string) string
	Tell(session, id, token, gone string) string
	Changed(name string) string // tells who watches the value

	Arg(n int) string                     // a parameter of a query
	Call(name string, in, out int) string // calls a procedure that returns its results as a row
	CallRows(name string) string          // calls renew
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
