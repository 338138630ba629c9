//go:build unix

package cli

import (
	"errors"
	"strings"
	"testing"
)

// TestUsage_wrong: one line names the mistake, and the right form.
func TestUsage_wrong(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"show":                        "the number of arguments is 0: the form is: pawl show NAME [flags]",
		"show a b":                    "the number of arguments is 2: the form is: pawl show NAME [flags]",
		"break":                       "the form is: pawl break NAME [flags]",
		"ls a b":                      "the form is: pawl ls [PREFIX] [flags]",
		"resize x":                    "the form is: pawl resize NAME PERMITS [flags]",
		"break --token 1 --claim a x": "--token and --claim exclude each other",
		"version x":                   "the form is: pawl version [flags]",
		"store init x":                "the form is: pawl store init [flags]",
		"idem rnu":                    `unknown command "rnu" for "pawl idem"`,
		"store create":                `unknown command "create" for "pawl store"`,
		"help rnu":                    `there is no help about "rnu" (try: pawl help)`,
		"help store create":           `there is no help about "store create"`,
		"completion":                  "the name of a shell is missing (try: pawl help completion)",
		"completion csh":              `unknown command "csh" for "pawl completion"`,
		"ls --nosuch":                 "unknown flag: --nosuch (try: pawl help ls)",
		"--nosuch":                    "unknown flag: --nosuch (try: pawl help)",
		"run --ttl 5 x":               `missing unit in duration "5" (try: pawl help run)`,
		"store init -x":               "(try: pawl help store init)",
		"ls --store=":                 "--store is empty",
	} {
		stdout, stderr := want(t, 64, "memory:", strings.Fields(line)...)
		complaint(t, stderr, says)
		if stdout != "" {
			t.Errorf("%s: on standard output %q", line, stdout)
		}
	}
	_, stderr := want(t, 64, sqliteStore(t), "run", "--ttl", "1ms", "x", "--", "true")
	complaint(t, stderr, "--ttl: invalid: ")
}

// TestUsage_unixOnly: another system names the reason, whatever flags the verb has on Unix.
func TestUsage_unixOnly(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"run", "run --try -n 3 x -- true", "run --ttl 5s x", "run --nosuch"} {
		root := newRoot()
		run, _, err := root.Find([]string{"run"})
		if err != nil {
			t.Fatal(err)
		}
		root.RemoveCommand(run)
		root.AddCommand(unixOnly("run", "Run a command under a lock"))
		root.SetArgs(strings.Fields(args))
		var exit *exitError
		if err := root.Execute(); !errors.As(err, &exit) || exit.code != exitUsage || exit.err.Error() != "run needs a Unix system" {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestUsage_help(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"help":                 "pawl runs programs under locks",
		"help run":             "pawl run [flags] NAME",
		"help join":            "pawl join NAME --addr HOST:PORT [flags] -- CMD [ARG...]",
		"help members":         "pawl members NAME [flags]",
		"help proxy":           "pawl proxy --listen HOST:PORT --group NAME [flags]",
		"help store":           "pawl store [command]",
		"help store init":      "pawl store init [flags]",
		"help id":              "pawl id [command]",
		"help id segment":      "pawl id segment NAME [flags]",
		"help id serve":        "GET /id/NAME?n=100",
		"help idem":            "pawl idem [command]",
		"help idem run":        "PAWL_ATTEMPT",
		"help outbox":          "pawl outbox [command]",
		"help outbox requeue":  "pawl outbox requeue [ID...] [flags]",
		"id explain --help":    "pawl id explain ID [flags]",
		"help completion":      "bash",
		"help completion bash": "bash-completion",
		"help help":            "help",
		"run --help":           "pawl run [flags] NAME",
		"completion bash":      "pawl",
	} {
		stdout, stderr := want(t, 0, "memory:", strings.Fields(line)...)
		if !strings.Contains(stdout, says) || stderr != "" {
			t.Errorf("%s: standard error %q, output %.100q", line, stderr, stdout)
		}
	}
}
