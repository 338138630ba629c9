package main

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is the program when it is started as the server.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == serverArg {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestPayment: the usual forms pay twice, those of pawl pay as often as the table of forms says, and the
// recipes show the output.
func TestPayment(t *testing.T) {
	var out strings.Builder
	// A moment is enough, but a busy machine may be late to renew.
	if err := run(t.Context(), []string{"-ttl", "5s"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, page := range []string{"idempotency.md", "idempotency.zh.md"} {
		text, err := os.ReadFile("../../docs/recipes/" + page)
		if err != nil {
			t.Fatal(err)
		}
		_, shown, _ := strings.Cut(string(text), "```text\n")
		shown, _, _ = strings.Cut(shown, "```")
		if out.String() != shown {
			t.Errorf("it prints\n%s\nand %s shows\n%s", out.String(), page, shown)
		}
	}
}

// TestForms: of each way there is a usual form, which pays twice in both tests, and a form that pays once in both.
func TestForms(t *testing.T) {
	twice, once := map[string]bool{}, map[string]bool{}
	for _, f := range forms {
		twice[f.way] = twice[f.way] || f.killed == 2 && f.slow == 2
		once[f.way] = once[f.way] || f.killed == 1 && f.slow == 1
	}
	if len(twice) != 5 {
		t.Errorf("there are %d ways, not 5", len(twice))
	}
	for way := range twice {
		if !twice[way] || !once[way] {
			t.Errorf("%s: pays twice: %v, pays once: %v", way, twice[way], once[way])
		}
	}
}

// TestFinds: the program fails if a form pays another number of times than it should.
func TestFinds(t *testing.T) {
	var killed, slow []int
	for _, f := range forms {
		killed, slow = append(killed, f.killed), append(slow, f.slow)
	}
	var out strings.Builder
	if err := tell(&out, killed, slow); err != nil {
		t.Fatal(err)
	}
	killed[len(killed)-1]++
	if err := tell(&out, killed, slow); err == nil || !strings.Contains(err.Error(), "paid 2 and 1 times, not 1 and 1") {
		t.Errorf("a double payment: %v", err)
	}
}
