package docs_test

import (
	"os"
	"strings"
	"testing"
)

// TestTablesHaveNoHoles: what a store or a primitive does about the seam is
// said for every one of them.
func TestTablesHaveNoHoles(t *testing.T) {
	text, err := os.ReadFile("design.md")
	if err != nil {
		t.Fatal(err)
	}
	columns, rows := 0, 0
	for n, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if columns == 0 {
			columns = len(cells)
		}
		if len(cells) != columns {
			t.Errorf("line %d: %d cells in a table of %d columns", n+1, len(cells), columns)
		}
		for _, cell := range cells[1:] {
			if text := strings.TrimSpace(cell); text == "" || text == "?" || strings.EqualFold(text, "TODO") {
				t.Errorf("line %d: a cell is empty", n+1)
			}
		}
	}
	if rows == 0 {
		t.Error("design.md has no tables")
	}
}
