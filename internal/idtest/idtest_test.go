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
		"twice, and others":      {[][]int64{{1, 65536}, {65536, 1 << 50}}, false, false},
		"falls":                  {[][]int64{{1, 3, 2}}, false, false},
		"falls, which it may":    {[][]int64{{1, 3, 2}}, true, true},
		"twice, of which it may": {[][]int64{{3, 1}, {2, 1}}, true, false},
	} {
		c, n := Checker[int64]{Unordered: test.unordered}, 0
		disks := make(map[string]*DiskChecker)
		for _, half := range []string{"low", "high"} {
			d, err := NewDiskChecker(t.TempDir(), test.unordered)
			if err != nil {
				t.Fatal(err)
			}
			disks[half] = d
		}
		for _, ids := range test.logs {
			c.Log().Add(ids...)
			low, high := disks["low"].Log(), disks["high"].Log()
			for _, is := range ids {
				low.Add(ID{0, uint64(is)})
				high.Add(ID{uint64(is), 7})
			}
			n += len(ids)
		}
		if is, err := c.Check(); (err == nil) != test.good || is != n {
			t.Errorf("%s: %d, %v", name, is, err)
		}
		for half, d := range disks {
			if is, err := d.Check(); (err == nil) != test.good || is != n {
				t.Errorf("%s, on disk, %s: %d, %v", name, half, is, err)
			}
		}
	}
}

// TestDiskCheckerFindsOne: of a million IDs, one is there twice.
func TestDiskCheckerFindsOne(t *testing.T) {
	for _, twice := range []bool{false, true} {
		d, err := NewDiskChecker(t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		const n = 1_000_000
		log := d.Log()
		for i := range uint64(n) {
			log.Add(ID{i >> 8, i << 12})
		}
		if twice {
			d.Log().Add(ID{1, 300 << 12})
		}
		if is, err := d.Check(); (err != nil) != twice {
			t.Errorf("twice %t: %d, %v", twice, is, err)
		}
	}
}
