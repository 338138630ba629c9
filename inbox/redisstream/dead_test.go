package redisstream_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/inbox/redisstream"
)

// letters is a stream whose only entry is with a consumer.
type letters struct {
	client rueidis.Client
	stream string
	got    inbox.Delivery
}

func newLetters(t *testing.T, fields ...string) *letters {
	t.Helper()
	l := &letters{client: connect(t), stream: rand.Text()}
	l.do(t, append([]string{"XADD", l.stream, "*"}, fields...)...)
	l.got = take(t, feed(t, l.client, l.stream, "g", nil), 1)[0]
	return l
}

func (l *letters) do(t *testing.T, words ...string) {
	t.Helper()
	if err := l.client.Do(t.Context(), l.client.B().Arbitrary(words...).Build()).Error(); err != nil {
		t.Fatal(words[0], err)
	}
}

// has checks how many entries nobody has acknowledged, and returns the dead letters.
func (l *letters) has(t *testing.T, pending int64, dead int) []rueidis.XRangeEntry {
	t.Helper()
	is, err := l.client.Do(t.Context(), l.client.B().Xpending().Key(l.stream).Group("g").Build()).ToArray()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := is[0].AsInt64(); n != pending || err != nil {
		t.Errorf("%d pending entries, %v: want %d", n, err, pending)
	}
	if dead == 0 {
		return nil
	}
	all, err := l.client.Do(t.Context(), l.client.B().Xrange().Key(l.stream+":g:dead").Start("-").End("+").Build()).AsXRange()
	if err != nil || len(all) != dead {
		t.Fatalf("%d dead letters, %v: want %d", len(all), err, dead)
	}
	return all
}

// TestDeadLetterRefused: an entry stays with its group until the server has taken the dead letter, which is then the only one.
func TestDeadLetterRefused(t *testing.T) {
	l := newLetters(t, "id", "a")
	l.do(t, "SET", l.stream+":g:dead", "no stream")
	if err := l.got.Dead(t.Context(), "a reason"); err == nil {
		t.Error("a letter that the server refused is no error")
	}
	l.has(t, 1, 0)
	l.do(t, "DEL", l.stream+":g:dead")
	for range 2 { // the answer to the first may be lost
		if err := l.got.Dead(t.Context(), "a reason"); err != nil {
			t.Error(err)
		}
		if all := l.has(t, 0, 1); all[0].FieldValues["id"] != "a" || all[0].FieldValues["dead:reason"] != "a reason" {
			t.Error(all[0].FieldValues)
		}
	}
}

// TestDeadOfLostReader: a reader makes no dead letter of an entry that another reader has taken over. The entry stays with the other one.
func TestDeadOfLostReader(t *testing.T) {
	l := newLetters(t, "id", "a")
	source, err := redisstream.New(l.client, l.stream, "g", nil)
	if err != nil {
		t.Fatal(err)
	}
	other := take(t, single(t, source), 1)[0]
	if err := l.got.Dead(t.Context(), "a reason"); !errors.Is(err, inbox.ErrTaken) {
		t.Error(err)
	}
	if n, err := l.client.Do(t.Context(), l.client.B().Exists().Key(l.stream+":g:dead").Build()).AsInt64(); n != 0 || err != nil {
		t.Error("there is a dead letter", err)
	}
	l.has(t, 1, 0)
	if err := other.Dead(t.Context(), "a reason"); err != nil {
		t.Error(err)
	}
	l.has(t, 0, 1)
}

// TestDeadIsNotTheSource: dead letters in the source would come back as messages without end.
func TestDeadIsNotTheSource(t *testing.T) {
	if _, err := redisstream.New(connect(t), "s", "g", &redisstream.Options{Dead: "s"}); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
}

// TestLargeDeadLetter: an entry with more fields than one call of a script takes is in several letters.
func TestLargeDeadLetter(t *testing.T) {
	const many = 9_999
	fields := []string{"id", "a"}
	for i := range many {
		fields = append(fields, fmt.Sprint("header:", i), fmt.Sprint(i))
	}
	l := newLetters(t, fields...)
	if err := l.got.Dead(t.Context(), "a reason"); err != nil {
		t.Fatal(err)
	}
	whole := make(map[string]string)
	for i, e := range l.has(t, 0, 10) {
		if want := fmt.Sprintf("%d/10", i+1); e.FieldValues["dead:part"] != want {
			t.Errorf("part %q: want %q", e.FieldValues["dead:part"], want)
		}
		for name, value := range e.FieldValues {
			whole[name] = value
		}
	}
	for i := range many {
		if name := fmt.Sprint("header:", i); whole[name] != fmt.Sprint(i) {
			t.Fatalf("%s is %q", name, whole[name])
		}
	}
	if whole["id"] != "a" || len(whole) != many+6 {
		t.Errorf("%d fields", len(whole))
	}
}
