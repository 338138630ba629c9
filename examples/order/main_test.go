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

func ran(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

var files = []string{"-orders", "sqlite", "-stock", "sqlite", "-broker", "webhook"}

// TestFiles: without any server the books balance, and the naive form is found not to balance.
func TestFiles(t *testing.T) {
	t.Parallel()
	if out := ran(t, append(files, "-n", "100")...); !strings.Contains(out, "The books balance.") {
		t.Errorf("it prints\n%s", out)
	}
	var out strings.Builder
	if err := run(t.Context(), append(files, "-n", "100", "-naive"), &out); !errors.Is(err, errBooks) {
		t.Errorf("without outbox and inbox: %v\n%s", err, out.String())
	}
}
