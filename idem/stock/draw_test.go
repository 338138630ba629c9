package stock

import (
	"slices"
	"testing"
)

// TestDraw explores all stocks of up to 4 parts of up to 6 units, and all requests.
func TestDraw(t *testing.T) {
	cases := 0
	var with func(is []amount)
	with = func(is []amount) {
		if len(is) > 0 {
			for n := int64(1); n <= sum(is)+2; n++ {
				cases++
				testDraw(t, is, n)
			}
		}
		for n := int64(0); len(is) < 4 && n <= 6; n++ {
			with(append(slices.Clone(is), amount{int64(len(is))*3 + 1, n}))
		}
	}
	with(nil)
	if cases < 20_000 {
		t.Errorf("only %d cases", cases)
	}
}

func testDraw(t *testing.T, is []amount, n int64) {
	t.Helper()
	before := slices.Clone(is)
	left, changed, each, ok := draw(is, n)
	if !slices.Equal(is, before) {
		t.Fatalf("%v became %v", before, is)
	}
	if enough := sum(is) >= n; ok != enough || !enough && (left != sum(is) || changed != nil) {
		t.Fatalf("%d of %v: %d left, %v, %v", n, is, left, changed, ok)
	} else if !enough {
		return
	}
	after, most, least := int64(0), int64(0), int64(1)<<60
	for _, a := range is {
		if i := slices.IndexFunc(changed, func(c amount) bool { return c.part == a.part }); i >= 0 {
			a = changed[i]
		}
		if a.n < 0 {
			t.Fatalf("%d of %v: %v", n, is, changed)
		}
		after, most, least = after+a.n, max(most, a.n), min(least, a.n)
	}
	ordered := slices.IsSortedFunc(changed, func(a, b amount) int { return int(a.part - b.part) })
	if after != left || left != sum(is)-n || !ordered || len(changed) == 0 || (each > 0) != (left/int64(len(is)) >= n) || each > 0 && (most-least > 1 || least != each) {
		t.Fatalf("%d of %v: %v, %d left", n, is, changed, left)
	}
}

func TestEven(t *testing.T) {
	for parts := 1; parts <= 9; parts++ {
		for n := range int64(40) {
			all := even(n, parts)
			if len(all) != parts || sum(all) != n || all[0].n-all[parts-1].n > 1 || all[parts-1].part != int64(parts-1) {
				t.Errorf("%d over %d: %v", n, parts, all)
			}
		}
	}
}
