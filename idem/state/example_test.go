package state_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/state"
)

// A payment whose message comes twice, and a step that is not allowed.
func ExampleTable_Apply() {
	ctx := context.Background()
	db, err := sql.Open("sqlite3", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	if _, err := db.ExecContext(ctx, `
		CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL DEFAULT 'created', paid_by TEXT);
		INSERT INTO orders (id) VALUES (7)`); err != nil {
		log.Fatal(err)
	}
	machine, err := state.New([]string{"created", "paid", "shipped", "cancelled"},
		state.Transition[string]{From: "created", To: "paid"},
		state.Transition[string]{From: "paid", To: "shipped"},
		state.Transition[string]{From: "created", To: "cancelled"})
	if err != nil {
		log.Fatal(err) // a state that cannot be reached, say
	}
	orders := state.Table[string]{Dialect: dialect.SQLite, Name: "orders", Machine: machine}
	seven := state.Columns{"id": 7}
	for range 2 {
		result, err := orders.Apply(ctx, db, seven, "paid", state.Columns{"paid_by": "card"})
		fmt.Println(result.Outcome, err)
	}
	_, err = orders.Apply(ctx, db, seven, "cancelled", nil)
	fmt.Println(errors.Is(err, state.ErrIllegal), err)
	// Output:
	// moved <nil>
	// repeated <nil>
	// true move a row of orders to cancelled: illegal transition: from paid to cancelled
}

// States that only rise: the message of rank 99 comes late and changes nothing.
func ExampleRanked() {
	machine, err := state.Ranked(0, 99, 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, to := range []int{99, 100} {
		fmt.Println(machine.Decide(100, to))
	}
	// Output:
	// passed <nil>
	// repeated <nil>
}

// A picture for the documentation, which Mermaid draws.
func ExampleMachine_Mermaid() {
	machine := state.Must(state.New([]string{"active", "paused", "ended"},
		state.Transition[string]{From: "active", To: "paused"},
		state.Transition[string]{From: "paused", To: "active"},
		state.Transition[string]{From: "active", To: "ended"}))
	fmt.Print(machine.Mermaid())
	// Output:
	// stateDiagram-v2
	//     s0: active
	//     s1: paused
	//     s2: ended
	//     [*] --> s0
	//     s0 --> s1
	//     s1 --> s0
	//     s0 --> s2
	//     s2 --> [*]
}
