package idtest

import "testing"

func TestCheckers(t *testing.T) {
	for name, test := range map[string]struct {
		logs      [][]int64
		unordered bool
		good      bool
	}{
		"nothing":                {nil, false, true},
		"two goroutines":         {[][]int64{{1, 3, 5, 1 << 40}, {2, 4, 65536, 65537}}, false, true},
		"twice in one":           {[][]int64{{1, 2, 2}}, true, false},
		"twice in two":           {[][]int64{{1, 3}, {2, 3}}, false, false},
		"twice in the next page": {[][]int64{{1, 65536}, {65536}}, false, false},
		"falls":                  {[][]int64{{1, 3, 2}}, false, false},
		"falls, which it may":    {[][]int64{{1, 3, 2}}, true, true},
		"twice, of which it may": {[][]int64{{3, 1}, {2, 1}}, true, false},
	} {
		c, d, n := Checker[int64]{Unordered: test.unordered}, Dense{}, 0
		for _, ids := range test.logs {
			c.Log().Add(ids...)
			d.Log().Add(ids...)
			n += len(ids)
		}
		if is, err := c.Check(); (err == nil) != test.good || is != n {
			t.Errorf("%s: %d, %v", name, is, err)
		}
		if is, err := d.Check(); !test.unordered && (err == nil) != test.good || is != n {
			t.Errorf("%s, dense: %d, %v", name, is, err)
		}
	}
}
