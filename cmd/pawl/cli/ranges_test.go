//go:build unix

package cli

import (
	"strings"
	"testing"
)

// TestUsage_ranges: a duration or a number out of its range is refused before any request, and the error names the flag and the
// range. A zero is no default.
func TestUsage_ranges(t *testing.T) {
	t.Parallel()
	const proxy = "proxy --listen :0 --group g "
	for line, says := range map[string]string{
		"tx recover --resource s --lease 0":                  "--lease is 0s: 1s to 1h0m0s are allowed",
		"tx recover --resource s --lease=-1s":                "--lease is -1s: 1s to 1h0m0s are allowed",
		"tx recover --resource s --within 0":                 "--within is 0s: at least twice the lease of 10s is allowed",
		"tx agent --timeout 0":                               "--timeout is 0s: 50ms to 1m0s are allowed",
		"tx agent --timeout 1h":                              "--timeout is 1h0m0s: 50ms to 1m0s are allowed",
		"outbox relay --window 0":                            "--window is 0: 1 to 1000 are allowed",
		"outbox relay --hold 17":                             "--hold is 17: 1 to 16 are allowed",
		"outbox relay --attempts 0":                          "--attempts is 0: 1 to 1000000 are allowed",
		"outbox relay --timeout 0":                           "--timeout is 0s: 100ms to 1h0m0s are allowed",
		"outbox relay --poll 0":                              "--poll is 0s: 10ms to 1h0m0s are allowed",
		"outbox relay --resend 1ms":                          "--resend is 1ms: 0 (never), and 1s to 8784h0m0s are allowed",
		"outbox relay --retention 0":                         "--retention is 0s: 1s to 87672h0m0s are allowed",
		"outbox relay --maxlen=-1":                           "--maxlen is -1: 0 or more are allowed",
		proxy + "--tries 0":                                  "--tries is 0: 1 to 100 are allowed",
		proxy + "--tries 101":                                "--tries is 101: 1 to 100 are allowed",
		proxy + "--try-timeout 2h":                           "--try-timeout is 2h0m0s: 1ms to 1h0m0s are allowed",
		proxy + "--try-timeout=-1ns":                         "--try-timeout is -1ns: 1ms to 1h0m0s are allowed",
		proxy + "--client-timeout 2h":                        "--client-timeout is 2h0m0s: 1ms to 1h0m0s are allowed",
		proxy + "--client-timeout 0":                         "--client-timeout is 0s: 1ms to 1h0m0s are allowed",
		proxy + "--retry-after 1ms":                          "--retry-after is 1ms: 1s to 1h0m0s are allowed",
		proxy + "--eject-after 0":                            "--eject-after is 0: -1 (never), and 1 to 1000000 are allowed",
		proxy + "--eject-after=-2":                           "--eject-after is -2: -1 (never), and 1 to 1000000 are allowed",
		proxy + "--eject-after=-1 --eject-for 1s":            "--eject-for is for members that are taken out, and --eject-after is -1 (never)",
		proxy + "--eject-for 0":                              "--eject-for is 0s: 1ms to 1h0m0s are allowed",
		proxy + "--slow-start 2h":                            "--slow-start is 2h0m0s: 0s to 1h0m0s are allowed",
		proxy + "--drain=-1s":                                "--drain is -1s: 0s to 1h0m0s are allowed",
		proxy + "--finish 2h":                                "--finish is 2h0m0s: 0s to 1h0m0s are allowed",
		proxy + "--policy source-hash --bound NaN":           "--bound is NaN: 0 (none), and 1 to 100 are allowed",
		proxy + "--policy source-hash --bound 0.5":           "--bound is 0.5: 0 (none), and 1 to 100 are allowed",
		"slot -n 0 x -- true":                                "-n is 0: 1 to 4096 are allowed",
		"slot -n 4097 x -- true":                             "-n is 4097: 1 to 4096 are allowed",
		"id snowflake x --unit 0":                            "--unit is 0s: whole milliseconds from 1ms to 1s are allowed",
		"id snowflake x --unit 1500us":                       "--unit is 1.5ms: whole milliseconds from 1ms to 1s are allowed",
		"id sequence x --db sqlite:a --step 0":               "--step is 0: 1 to 1000000 are allowed",
		"id sequence x --db sqlite:a --step=-1":              "--step is -1: 1 to 1000000 are allowed",
		"id sequence x --db sqlite:a --db b: --step 1":       "--step is 1: 2 to 1000000 are allowed",
		"id serve --kind sequence --db a: --name x --step 0": "--step is 0: 1 to 1000000 are allowed",
	} {
		_, stderr := want(t, 64, "redis://127.0.0.1:1", strings.Fields(line)...)
		complaint(t, stderr, "pawl: "+says)
	}
}
