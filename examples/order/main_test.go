package main

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/testservers"
)

// The test binary is the program when it is started as one of the processes.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		main()
		return
	}
	os.Exit(testservers.Main(m))
}

// The commands of the recipes, without a number of customers. Tests run all of them.
const (
	usual     = ""
	naively   = "-orders sqlite -payments none -stock sqlite -broker webhook -naive"
	unpaid    = "-orders sqlite -payments postgres -stock sqlite -broker webhook -naive"
	allCuts   = "-cut all"
	allFaults = "-tx all"
)

// ran runs the program and returns its words. The books have to balance, or not to.
func ran(t *testing.T, balance bool, command string, more ...string) string {
	t.Helper()
	var out strings.Builder
	args := append(strings.Fields(command), more...)
	err := run(t.Context(), args, &out)
	if balance && err != nil || !balance && !errors.Is(err, errBooks) {
		t.Errorf("%q: %v\n%s", args, err, out.String())
	}
	return out.String()
}

// TestFiles: without a server the books balance.
func TestFiles(t *testing.T) {
	t.Parallel()
	ran(t, true, strings.TrimSuffix(naively, " -naive"), "-n", "25")
}

// TestNaive: without outbox and inbox the books are found not to balance, and without dtx those of the payments.
func TestNaive(t *testing.T) {
	t.Parallel()
	for command, wrong := range map[string]string{naively: `deliveries without an order +[1-9]`, unpaid: `payments without an order +[1-9]`} {
		t.Run(wrong, func(t *testing.T) {
			t.Parallel()
			out := ran(t, false, command, "-n", "10")
			if !strings.Contains(out, "THE BOOKS DO NOT BALANCE.") || !regexp.MustCompile(wrong).MatchString(out) {
				t.Errorf("it prints\n%s", out)
			}
		})
	}
}

// TestServers: the books balance on servers that the program starts: those of the recipes, and other kinds.
func TestServers(t *testing.T) {
	t.Parallel()
	for flags, places := range map[string][]string{
		usual: {"Orders are in PostgreSQL, the stock is in MariaDB, and NATS JetStream is between them.\n", "a third database, in PostgreSQL"},
		"-orders postgres -payments mariadb -stock mariadb -broker redis": {"Orders are in PostgreSQL", "a third database, in MariaDB", "Redis Streams"},
	} {
		t.Run(places[1], func(t *testing.T) {
			t.Parallel()
			out := ran(t, true, flags, "-n", "15")
			for _, place := range places {
				if !strings.Contains(out, place) {
					t.Errorf("it does not say %q:\n%s", place, out)
				}
			}
			if !regexp.MustCompile(`killed [1-9]\d* times between the phases`).MatchString(out) {
				t.Errorf("no producer was killed between the phases:\n%s", out)
			}
		})
	}
}

// TestCuts: each cut shows the fault, and the cure. The recipes show the output.
func TestCuts(t *testing.T) {
	t.Parallel()
	_, out, _ := strings.Cut(ran(t, true, allCuts, "-orders", "sqlite", "-stock", "sqlite", "-broker", "nats"), "\n")
	shown(t, "outbox", out)
}

// TestFaults: each problem of two-phase commit is shown, and the cure. The recipes show the output.
func TestFaults(t *testing.T) {
	t.Parallel()
	_, out, _ := strings.Cut(ran(t, true, allFaults), "\n\n")
	found, sides, _ := strings.Cut(out, "\n\nPARTITION")
	shown(t, "transactions", "\n"+found+"\n")
	shown(t, "transactions", "\nPARTITION"+sides)
}

// shown holds both languages of a recipe to an output.
func shown(t *testing.T, recipe, out string) {
	t.Helper()
	for _, language := range []string{".md", ".zh.md"} {
		text, err := os.ReadFile("../../docs/recipes/" + recipe + language)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "```text\n"+out+"```") {
			t.Errorf("it prints\n%s\nand %s%s does not show that", out, recipe, language)
		}
	}
}

// TestCommands: the recipes have the commands of the table and no others. The tests above run those of the constants.
// -cut all has each cut, and -tx all each fault and the partition, so a test runs the commands of those too.
func TestCommands(t *testing.T) {
	commands := map[string]bool{usual: false, naively: false, unpaid: false, allCuts: false, allFaults: false, "-tx " + partition: false}
	for _, c := range cuts {
		commands["-cut "+c.name] = false
	}
	for _, f := range faults {
		commands["-tx "+f.name] = false
	}
	customers := regexp.MustCompile(` -n \d+`)
	for _, page := range []string{"outbox.md", "outbox.zh.md", "transactions.md", "transactions.zh.md"} {
		text, err := os.ReadFile("../../docs/recipes/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range regexp.MustCompile(`(?m)^go run \./examples/order(.*)$`).FindAllStringSubmatch(string(text), -1) {
			command := strings.TrimSpace(customers.ReplaceAllString(line[1], ""))
			if _, known := commands[command]; !known {
				t.Errorf("%s: no test runs %q", page, line[0])
			}
			commands[command] = true
		}
	}
	for command, is := range commands {
		if !is {
			t.Errorf("no page has the command %q", command)
		}
	}
}

// TestLeftOut: a server that is not installed is named, and another kind takes its place.
func TestLeftOut(t *testing.T) {
	t.Setenv("PATH", "")
	usual := folders
	folders = nil
	defer func() { folders = usual }()
	var out strings.Builder
	p, err := openPlaces(t.Context(), wanted{auto, auto, auto, auto}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"PostgreSQL is left out: initdb is not installed.\n", "MariaDB is left out: ", "NATS JetStream is left out: ",
		"Orders are in SQLite, the stock is in SQLite, and a webhook is between them.\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	err = run(t.Context(), []string{"-orders", "postgres"}, &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "-orders: PostgreSQL: initdb is not installed") {
		t.Errorf("a server that was asked for: %v", err)
	}
}

// TestUsage: a wrong value is named, with the allowed values.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-n", "0"}, {"-cut", "all of them"}, {"-tx", "none"}, {"-payments", "sqlite"}, {"-orders", "oracle"}, {"-stock", "nats"}, {"-broker", "kafka"}} {
		err := run(t.Context(), args, &strings.Builder{})
		if err == nil || !strings.Contains(err.Error(), args[0]+" is ") || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%q: %v", args, err)
		}
	}
	for _, command := range []string{"-tx all -cut all", "-tx all -orders postgres"} {
		err := run(t.Context(), strings.Fields(command), &strings.Builder{})
		if err == nil || !strings.Contains(err.Error(), "not allowed") {
			t.Errorf("%s: %v", command, err)
		}
	}
}
