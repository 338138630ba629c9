//go:build unix

package cli

import (
	"strings"
	"testing"
)

// TestWaitLine_fits: the line is shorter than the terminal, also where a character has two columns.
func TestWaitLine_fits(t *testing.T) {
	t.Parallel()
	w := &waitLine{width: 20}
	for text, fits := range map[string]string{
		"":                                      "",
		strings.Repeat("a", 19):                 strings.Repeat("a", 19),
		strings.Repeat("é", 20):                 strings.Repeat("é", 19),
		strings.Repeat("锁", 9):                  strings.Repeat("锁", 9),
		strings.Repeat("锁", 15):                 strings.Repeat("锁", 9),
		"a" + strings.Repeat("ロ", 15):           "a" + strings.Repeat("ロ", 9),
		"ab" + strings.Repeat("\U0001f512", 15): "ab" + strings.Repeat("\U0001f512", 8),
	} {
		if is := w.fit(text); is != fits {
			t.Errorf("%q is cut to %q, want %q", text, is, fits)
		}
	}
}
