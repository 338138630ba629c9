package idtest

import "testing"

func TestChecker(t *testing.T) {
	for name, test := range map[string]struct {
		logs      [][]int64
		unordered bool
		good      bool
	}{
		"nothing":                {nil, false, true},
		"two goroutines":         {[][]int64{{1, 3, 5}, {2, 4}}, false, true},
		"twice in one":           {[][]int64{{1, 2, 2}}, true, false},
		"twice in two":           {[][]int64{{1, 3}, {2, 3}}, false, false},
		"falls":                  {[][]int64{{1, 3, 2}}, false, false},
		"falls, which it may":    {[][]int64{{1, 3, 2}}, true, true},
		"twice, of which it may": {[][]int64{{3, 1}, {2, 1}}, true, false},
	} {
		c := Checker[int64]{Unordered: test.unordered}
		for _, ids := range test.logs {
			c.Log().Add(ids...)
		}
		if _, err := c.Check(); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
