package names_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/pawl-go/pawl/internal/names"
)

// TestOf: the names come first, then the error, and a caller that stops gets no more.
func TestOf(t *testing.T) {
	failed := errors.New("failed")
	asked := 0
	all := names.Of(func() ([]string, error) { asked++; return []string{"a", "b"}, failed })
	if asked != 0 {
		t.Error("the list was read before anybody asked for it")
	}
	var got []string
	var last error
	for name, err := range all {
		got, last = append(got, name), err
	}
	if !slices.Equal(got, []string{"a", "b", ""}) || !errors.Is(last, failed) {
		t.Errorf("%q, %v", got, last)
	}
	got = nil
	for name := range all {
		if got = append(got, name); name == "a" {
			break
		}
	}
	if !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q for a caller that stopped", got)
	}
}
