package cli

import (
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// TestID_brings_time_zones: --zone works on machines without a database of time zones, as in an image that has pawl alone.
func TestID_brings_time_zones(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "idoptions.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, is := range file.Imports {
		paths = append(paths, is.Path.Value)
	}
	if !slices.Contains(paths, `"time/tzdata"`) {
		t.Errorf("imports %s", paths)
	}
}
