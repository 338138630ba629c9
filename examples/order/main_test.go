package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is the program when it is started as one of the processes.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// ran runs the program and returns its words. The books have to balance, or not to.
func ran(t *testing.T, balance bool, args ...string) string {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), args, &out)
	if balance && err != nil || !balance && !errors.Is(err, errBooks) {
		t.Errorf("%q: %v\n%s", args, err, out.String())
	}
	return out.String()
}

func files(broker string, args ...string) []string {
	return append([]string{"-orders", "sqlite", "-stock", "sqlite", "-broker", broker}, args...)
}

// TestFiles: without a server the books balance.
func TestFiles(t *testing.T) {
	t.Parallel()
	ran(t, true, files("webhook", "-n", "25")...)
}

// TestNaive: without outbox and inbox the books are found not to balance.
func TestNaive(t *testing.T) {
	t.Parallel()
	if out := ran(t, false, files("webhook", "-n", "25", "-naive")...); !strings.Contains(out, "THE BOOKS DO NOT BALANCE.") {
		t.Errorf("it prints\n%s", out)
	}
}

// TestServers: the books balance on servers that the program starts.
func TestServers(t *testing.T) {
	t.Parallel()
	out := ran(t, true, "-orders", "postgres", "-stock", "mariadb", "-broker", "redis", "-n", "20")
	if !strings.Contains(out, "PostgreSQL") || !strings.Contains(out, "MariaDB") || !strings.Contains(out, "Redis Streams") {
		t.Errorf("it prints\n%s", out)
	}
}

// TestCuts: each cut shows the fault, and the cure. The recipes show the output.
func TestCuts(t *testing.T) {
	t.Parallel()
	_, out, _ := strings.Cut(ran(t, true, files("nats", "-cut", "all")...), "\n")
	for _, page := range []string{"outbox.md", "outbox.zh.md"} {
		text, err := os.ReadFile("../../docs/recipes/" + page)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), out+"```") {
			t.Errorf("it prints\n%s\nand %s does not show that", out, page)
		}
		for _, c := range cuts {
			if !strings.Contains(string(text), "\ngo run ./examples/order -cut "+c.name+"\n") {
				t.Errorf("%s does not cut %s", page, c.name)
			}
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
	p, err := openPlaces(t.Context(), auto, auto, auto, &out)
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
	for _, args := range [][]string{{"-n", "0"}, {"-cut", "all of them"}, {"-orders", "oracle"}, {"-stock", "nats"}, {"-broker", "kafka"}} {
		err := run(t.Context(), args, &strings.Builder{})
		if err == nil || !strings.Contains(err.Error(), args[0]+" is ") || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
