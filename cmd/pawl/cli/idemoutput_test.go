package cli

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

// TestOutcome_keeps_the_order: a repeat writes each chunk to its stream, in the order in which it was read.
func TestOutcome_keeps_the_order(t *testing.T) {
	t.Parallel()
	o := &outcome{code: 255, most: 100}
	for _, text := range []string{"1a", "1b", "2c", "1d", "2", "2e"} {
		o.add(text[0]-'0', []byte(text[1:]))
	}
	is, err := decodeOutcome(o.encode())
	if err != nil || is.code != 255 || is.cut || is.size() != 5 {
		t.Fatalf("%+v, %v", is, err)
	}
	var all bytes.Buffer
	if err := is.print(&all, &all); err != nil || all.String() != "abcde" {
		t.Errorf("printed %q, %v", all.String(), err)
	}
	var stdout, stderr bytes.Buffer
	if err := is.print(&stdout, &stderr); err != nil || stdout.String() != "abd" || stderr.String() != "ce" {
		t.Errorf("printed %q and %q, %v", stdout.String(), stderr.String(), err)
	}
	if n := len(o.encode()); n != outcomeHead+4*chunkHead+5 {
		t.Errorf("%d bytes: neighbours of a stream are not one chunk", n)
	}
}

// TestOutcome_is_bounded: whatever the chunks are, no more than the bound is kept. The kept part is
// the beginning. A result at the largest bound fits in the store.
func TestOutcome_is_bounded(t *testing.T) {
	t.Parallel()
	for most := range 40 {
		for size := 1; size < 8; size++ {
			o := &outcome{most: most}
			var whole, kept bytes.Buffer
			for i := range 12 {
				text := []byte(strings.Repeat(string(rune('a'+i)), size))
				whole.Write(text)
				o.add(byte(1+i/2%2), text)
			}
			is, err := decodeOutcome(o.encode())
			if err != nil {
				t.Fatal(err)
			}
			is.print(&kept, &kept) //nolint:errcheck // a buffer takes all
			if len(is.chunks) > most || !bytes.HasPrefix(whole.Bytes(), kept.Bytes()) || is.cut != (kept.Len() < whole.Len()) {
				t.Fatalf("most %d, size %d: kept %q in %d bytes, cut %v", most, size, kept.String(), len(is.chunks), is.cut)
			}
		}
	}
	if most := outcomeHead + 1023<<10; most > idem.MaxResult {
		t.Errorf("a result has up to %d bytes", most)
	}
}

func TestOutcome_refuses_other_results(t *testing.T) {
	t.Parallel()
	good := &outcome{most: 100}
	good.add(toStderr, []byte("text"))
	text := good.encode()
	for _, bad := range [][]byte{
		nil, {}, []byte("{}"), []byte(`{"paid":true}`), text[:len(text)-1], append(slices.Clone(text), 1), append(slices.Clone(text), 3, 0, 0, 0),
		{2, 0, 0}, {1, 2, 0}, {1, 0, 0, 1, 0, 0, 1},
	} {
		if _, err := decodeOutcome(bad); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if o, err := decodeOutcome([]byte{1, 0, 7}); err != nil || o.code != 7 || o.print(io.Discard, io.Discard) != nil {
		t.Errorf("without output: %v", err)
	}
}

func TestCodes(t *testing.T) {
	t.Parallel()
	c, err := parseCodes("0,3-5,255")
	if err != nil {
		t.Fatal(err)
	}
	for code, is := range c {
		if is != slices.Contains([]int{0, 3, 4, 5, 255}, code) {
			t.Errorf("code %d: %v", code, is)
		}
	}
	for _, bad := range []string{"", "a", "-1", "1-", "256", "5-3", "0,,1", "0, 1", "+1"} {
		if _, err := parseCodes(bad); err == nil {
			t.Errorf("%q is no list", bad)
		}
	}
}
