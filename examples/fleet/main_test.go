package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is the program when it is started as one of the servers.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == serverArg {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestFleet: no request fails, and the picture of each policy has all servers.
func TestFleet(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), []string{"-policy", "round-robin,peak-ewma", "-time", "1500ms", "-ttl", "5s"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"\nround-robin: ", "\npeak-ewma: ", " %  killed\n", " %  slow\n", " %  joined\n", "POLICY", "\nNo request failed.\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not print %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("it moves the cursor of a file")
	}
}

// TestNaive: requests of a client that keeps the first list and repeats nothing are found to fail.
func TestNaive(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := run(t.Context(), []string{"-policy", "round-robin", "-time", "1500ms", "-ttl", "5s", "-naive"}, &out)
	if !errors.Is(err, errFailed) || strings.Contains(out.String(), "No request failed") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestUsage: a wrong value is named, with the allowed values.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-time", "1ms"}, {"-policy", "fastest"}} {
		err := run(t.Context(), args, &strings.Builder{})
		if err == nil || !strings.Contains(err.Error(), args[0]) || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestTerminal: a picture is drawn over the last.
func TestTerminal(t *testing.T) {
	var out strings.Builder
	p := &pen{out: &out, terminal: true}
	p.draw("\na\nb\n")
	p.draw("\nc\nd\n")
	if want := "\x1b[K\na\x1b[K\nb\x1b[K\n\x1b[3A\x1b[K\nc\x1b[K\nd\x1b[K\n"; out.String() != want {
		t.Errorf("it prints %q", out.String())
	}
}
