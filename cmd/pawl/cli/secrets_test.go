//go:build unix

package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestUsage_hides_passwords: no error repeats a password, also not that of a URL at a wrong place.
func TestUsage_hides_passwords(t *testing.T) {
	t.Parallel()
	file := "sqlite:" + filepath.Join(t.TempDir(), "log.db")
	want(t, 0, "memory:", "tx", "migrate", "--db", file)
	want(t, 0, "memory:", "tx", "migrate", "--agent", "--db", file)
	const resource, peer = "--resource: NAME=URL or NAME is allowed", "--peer: NAME=URL is allowed"
	for line, says := range map[string]string{
		"tx ls --db FILE --resource mysql://root:hidden@h/d":                                        resource,
		"tx ls --db FILE --resource mysql://root:hidden@h/d?x=y":                                    resource,
		"tx ls --db FILE --resource root:hidden@h":                                                  resource,
		"tx ls --db FILE --resource =mysql://root:hidden@h/d":                                       resource,
		"tx ls --db FILE --resource s=mysql://root:hidden@h:x/d":                                    "--resource s: bad store URL",
		"tx migrate --agent --db FILE --resource mysql://root:hidden@h/d":                           resource,
		"tx agent --db FILE --name a --peer http://root:hidden@h":                                   peer,
		"tx agent --db FILE --name a --peer http://root:hidden@h?x=y":                               peer,
		"tx agent --db FILE --name a --peer root:hidden@h":                                          peer,
		"tx agent --db FILE --name a --peer b=u://:hidden@h --peer b=u://h":                         "--peer b is given twice",
		"tx agent --db FILE --name a --listen 127.0.0.1:0 --peer b=u://:hidden@h --peer c=http://h": "the URL of the peer b: http://HOST:PORT/ and",
		"outbox relay --db FILE --to hidden@h:1":                                                    "--to has no scheme of a broker: allowed are amqp,",
		"run x --store=redis://:hidden@h -- true":                                                   "flag --store stands after the name",
		"ls -store=redis://:hidden@h":                                                               "unknown shorthand flag: 's' in -store=redis://...@h (try: pawl help ls)",
		"redis://:hidden@h ls":                                                                      `unknown command "redis://...@h" for "pawl"`,
		"help redis://:hidden@h":                                                                    "there is no help about",
		`ls -store"redis://:a"hidden@h`:                                                             "unknown shorthand flag: 's' in -store\"redis://...@h (try",
		"proxy --listen :0 --group g --upstream http://u:hidden@h":                                  `--upstream is "http://...@h"`,
		"run --ttl redis://u:hidden@h x -- true":                                                    `invalid argument "redis://...@h" for "--ttl" flag`,
	} {
		_, stderr, code := invoke(t, "redis://127.0.0.1:1", strings.Fields(strings.ReplaceAll(line, "FILE", file))...)
		complaint(t, stderr, says)
		if code != 64 || strings.Contains(stderr, "hidden") {
			t.Errorf("%s: exit code %d: %s", line, code, stderr)
		}
	}
	for _, password := range []string{"a hidden", `a" hidden`, `a\ "hidden`, `a@"hidden`, `a@hidden\`, `a@b hidden\`} {
		_, stderr := want(t, 64, "memory:", "redis://:"+password+"@h", "ls")
		complaint(t, stderr, `unknown command "redis://...@h" for "pawl"`)
		_, stderr = want(t, 64, "memory:", "ls", "-store=redis://:"+password+"@h") // the error has this without quotes
		complaint(t, stderr, "unknown shorthand flag: 's' in -store=redis://...@h (try: pawl help ls)")
	}
}
