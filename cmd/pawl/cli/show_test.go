//go:build unix

package cli

import (
	"strings"
	"testing"

	"github.com/pawl-go/pawl"
)

func TestShow(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		held(t, store, name)
		for i, flag := range []string{"--barge=false", "--shared"} {
			start(t, command(t, store, "run", flag, name, "--", "true"))
			eventually(t, "it waits", func() bool { return len(show(t, store, name).Claims) == i+2 })
		}
		stdout, _ := want(t, 0, store, "show", name)
		const who, age = `\S+ pid \d+: `, ` (unknown|[\d.]+m?s)`
		matches(t, stdout,
			name+`: lock`,
			`STATE PLACE WEIGHT LABEL OWNER TOKEN AGE HELD LEFT CLAIM`,
			`granted - exclusive `+who+`sh \S+ \d+`+age+age+age+` \S+`,
			`waiting 1 exclusive `+who+`true \S+ -`+age+` -`+age+` \S+`,
			`waiting 2 shared `+who+`true \S+ -`+age+` -`+age+` \S+`)

		claims := show(t, store, name).Claims
		first, last := claims[0], claims[2]
		if first.State != "granted" || first.Place != 0 || first.Token == 0 || first.Owner == "" || first.ID == "" || first.Session == "" {
			t.Errorf("the first claim is %+v", first)
		}
		if last.State != "waiting" || last.Place != 2 || last.Token != 0 || last.Mode != "shared" || first.Mode != "exclusive" {
			t.Errorf("the last claim is %+v", last)
		}
	})
}

func TestShow_of_nothing(t *testing.T) {
	t.Parallel()
	store := sqliteStore(t)
	stdout, _ := want(t, 0, store, "show", "free")
	matches(t, stdout, "free: nobody holds it or waits for it")
	stdout, _ = want(t, 0, store, "show", "--json", "free")
	matches(t, stdout, `\{"name":"free",.*"claims":\[\]\}`)
	for _, verb := range []string{"show", "break"} {
		_, stderr := want(t, 64, store, verb, "a\nb")
		complaint(t, stderr, "control character")
		_, stderr = want(t, 64, store, verb)
		complaint(t, stderr, "the number of arguments is 0: the form is: pawl "+verb+" NAME")
	}
}

func TestPrintable(t *testing.T) {
	if got := printable("ä b\x1b[2J\u202e\n"); got != "ä b?[2J??" {
		t.Errorf("got %q", got)
	}
	rows := showRows(pawl.Resource{Holders: []pawl.Party{{Claim: "\x1b[2J"}}})
	if got := rows[1][len(rows[1])-1]; got != "?[2J" {
		t.Errorf("a claim is shown as %q", got)
	}
}

// A holder that waited came before its grant: AGE counts from the request, and HELD from the grant.
func TestShow_counts_from_the_request_and_from_the_grant(t *testing.T) {
	t.Parallel()
	const waited = 300 // ms
	overStores(t, func(t *testing.T, store, name string) {
		knows := !strings.HasPrefix(store, "etcd:") // etcd tells no time
		held(t, store, name)
		next := start(t, command(t, store, "run", name, "--", "sh", "-c", "echo up; exec sleep 1000"))
		eventually(t, "the next holder has waited", func() bool {
			claims := show(t, store, name).Claims
			return len(claims) == 2 && (!knows || claims[1].AgeMS != nil && *claims[1].AgeMS >= waited)
		})
		want(t, 0, store, "break", "--yes", name)
		next.line()
		claims := show(t, store, name).Claims
		if len(claims) != 1 {
			t.Fatalf("claims %+v", claims)
		}
		switch c := claims[0]; {
		case !knows && (c.AgeMS != nil || c.HeldMS != nil):
			t.Errorf("etcd tells %+v", c)
		case knows && (c.AgeMS == nil || c.HeldMS == nil):
			t.Errorf("the store does not tell a time: %+v", c)
		case knows && *c.AgeMS-*c.HeldMS < waited:
			t.Errorf("it asked %d ms ago and holds for %d ms, but it waited for more than %d ms", *c.AgeMS, *c.HeldMS, waited)
		}
	})
}
