package readable_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/readable"
	"github.com/pawl-go/pawl/id/segment"
	"github.com/pawl-go/pawl/internal/idtest"
)

// at is a clock that stands still until it is set.
type at struct{ now atomic.Pointer[time.Time] }

func clockAt(t time.Time) *at { c := &at{}; c.now.Store(&t); return c }
func (c *at) Now() time.Time  { return *c.now.Load() }
func (c *at) set(t time.Time) { c.now.Store(&t) }
func day(year, month, d int) time.Time {
	return time.Date(year, time.Month(month), d, 0, 0, 0, 0, time.UTC)
}
func of(n int64) id.Generator[int64] { return &counting{n: n} }
func someDay() func() time.Time {
	return clockAt(day(2026, 11, 22).Add(15*time.Hour + 4*time.Minute + 5*time.Second + 67*time.Millisecond)).Now
}
func from(n int64) func(string) id.Generator[int64] {
	return func(string) id.Generator[int64] { return of(n) }
}

// counting is a generator in memory.
type counting struct {
	mu sync.Mutex
	n  int64
}

func (c *counting) Next(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n - 1, nil
}

func (c *counting) NextN(ctx context.Context, dst []int64) (int, error) {
	for i := range dst {
		dst[i], _ = c.Next(ctx) //nolint:errcheck // there is none
	}
	return len(dst), nil
}

func registers(t *testing.T) id.Registers {
	t.Helper()
	client, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // in memory
	r, err := id.Values(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func format(t *testing.T, template string, opts *readable.Options) *readable.Format {
	t.Helper()
	f, err := readable.New(template, opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func generatorOf(t *testing.T, f *readable.Format, fields map[string]string) id.Generator[string] {
	t.Helper()
	g, err := f.Generator(fields)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Each template makes the ID that is expected, and Parse reads that ID.
func TestTemplates(t *testing.T) {
	shanghai := time.FixedZone("CST", 8*60*60)
	for template, test := range map[string]struct {
		fields map[string]string
		zone   *time.Location
		want   string
		time   time.Time
	}{
		"ORD-{date:20060102}-{n:7}-{digit}":                   {nil, nil, "ORD-20261122-0000123-8", day(2026, 11, 22)},
		"{date:06.01.02}/{n:3}":                               {nil, nil, "26.11.22/123", day(2026, 11, 22)},
		"{date}{time}{n:4}{check}":                            {nil, nil, "20261122150405067012367", someDay()()},
		"{date}{time}{n:4}":                                   {nil, shanghai, "202611222304050670123", someDay()()},
		"T{n:18}":                                             {nil, nil, "T000000000000000123", time.Time{}},
		"{field:user:4}{n:5}-{field:shop}":                    {map[string]string{"user": "0042", "shop": "EU7"}, nil, "004200123-EU7", time.Time{}},
		"PAY {field:shop}#{date:02-01-2006}-{n:3} {check:36}": {map[string]string{"shop": "AZ09"}, nil, "PAY AZ09#22-11-2026-123 6", day(2026, 11, 22)},
	} {
		f := format(t, template, &readable.Options{Counter: from(123), Zone: test.zone, Now: someDay()})
		text, err := generatorOf(t, f, test.fields).Next(t.Context())
		if err != nil || text != test.want {
			t.Errorf("%s: %s, %v; not %s", template, text, err, test.want)
		}
		is, err := f.Parse(text)
		if err != nil || !is.Time.Equal(test.time) || is.Number != 123 || !maps.Equal(is.Fields, test.fields) {
			t.Errorf("%s: %s: %+v, %v", template, text, is, err)
		}
	}
}

// A mistake in a template is one clear error, before anything is asked of a store.
func TestBadTemplates(t *testing.T) {
	for template, why := range map[string]string{
		"":                                  "it has 0 counters: one is needed, as {n:7}",
		"ORD-{date}":                        "it has 0 counters",
		"{n:3}{n:4}":                        "it has 2 counters",
		"{n}":                               "{n}: the counter needs 1 to 18 digits",
		"{n:0}":                             "{n:0}: the counter needs 1 to 18 digits",
		"{n:19}":                            "{n:19}: the counter needs 1 to 18 digits",
		"{n:x}":                             "{n:x}: the counter needs",
		"{number:7}":                        "{number:7}: no such part: {n:7}, ",
		"{}{n:7}":                           "{}: no such part",
		"{time:1504}{n:7}":                  "{time:1504}: no such part",
		"{n:7":                              "{n:7: there is no }",
		"{n:7}}":                            `text "}": it may have printable ASCII without }`,
		"Ä{n:7}":                            `text "Ä": it may have`,
		"a\n{n:7}":                          `it may have`,
		"{date:2006}{n:7}":                  "{date:2006}: a date needs the year as 2006 or 06, the month as 01 and the day as 02",
		"{date:0102}{n:7}":                  "a date needs the year",
		"{date:20060102x}{n:7}":             "a date may have -, . and _ besides",
		"{date:2006010203}{n:7}":            "a date may have",
		"{date:}{n:7}":                      "a date needs",
		"{date}{date}{n:7}":                 "it has two dates or times",
		"{time}{time}{n:7}":                 "it has two dates or times",
		"{field}{n:7}":                      "the name of a field has 1 to 32",
		"{field:1}{n:7}":                    "the name of a field has",
		"{field:a:0}{n:7}":                  "the width of a field is 1 to 32",
		"{field:a:33}{n:7}":                 "the width of a field is",
		"{field:a}{n:7}":                    "{field:a} needs a width, as {field:a:4}, or after it",
		"{field:a}X{n:7}":                   "{field:a} needs a width",
		"{field:a:2}{field:a:2}{n:7}":       "{field:a:2}: there are two fields of this name",
		"{field:a}-{field:b}-{n:3}{check}":  "{check}: a check covers no separators: all fields but one need a width",
		"{field:a}-{n:3}-{field:b}-{digit}": "{digit}: a check covers no separators",
		"{digit}{n:7}":                      "{digit} has to be at the end",
		"{n:7}{check}.":                     "{check} has to be at the end",
		"{n:7}{digit}{check}":               "{digit} has to be at the end",
		"{n:7}{check:37}":                   "{check:37}: no such part",
	} {
		if _, err := readable.New(template, nil); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v; it should say %s", template, err, why)
		}
	}
}

func TestBadFields(t *testing.T) {
	opts := &readable.Options{Counter: from(1), Now: someDay()}
	digits := format(t, "{field:user:4}{field:shop}-{n:3}{digit}", opts)
	free := format(t, "{field:shop}-{n:3}", opts)
	for _, test := range []struct {
		f      *readable.Format
		fields map[string]string
		why    string
	}{
		{digits, nil, `field "user" is missing`},
		{digits, map[string]string{"user": "0042"}, `field "shop" is missing`},
		{digits, map[string]string{"user": "0042", "shop": "1", "more": "2"}, `field "more" is not in the template`},
		{digits, map[string]string{"user": "042", "shop": "1"}, `field "user" is "042": it has to have 4 characters`},
		{digits, map[string]string{"user": "0042", "shop": "A1"}, `field "shop" is "A1": allowed are 0-9, which is what {digit} covers`},
		{free, map[string]string{"shop": ""}, `field "shop" is "": 1 to 32 characters`},
		{free, map[string]string{"shop": strings.Repeat("1", 33)}, "1 to 32 characters"},
		{free, map[string]string{"shop": "a"}, `field "shop" is "a": allowed are 0-9 and A-Z`},
		{free, map[string]string{"shop": "A-"}, "allowed are 0-9 and A-Z"},
		{format(t, "{n:3}", nil), nil, "Options.Counter is nil"},
	} {
		if _, err := test.f.Generator(test.fields); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), test.why) {
			t.Errorf("%v: %v; it should say %s", test.fields, err, test.why)
		}
	}
}

// Parse names the part that is wrong.
func TestParseErrors(t *testing.T) {
	f := format(t, "ORD-{field:shop}-{date}-{time}-{n:5}-{check:36}", &readable.Options{Counter: from(7), Now: someDay()})
	good, err := generatorOf(t, f, map[string]string{"shop": "EU1"}).Next(t.Context())
	if err != nil || good != "ORD-EU1-20261122-150405067-00007-S" {
		t.Fatal(good, err)
	}
	for was, test := range map[string]struct{ is, why string }{
		"ORD-":      {"INV-", `ORD- at character 1: there is "INV-EU1`},
		"EU1":       {"eu1", `{field:shop} at character 5: field "shop" is "": 1 to 32`},
		"20261122":  {"20261322", `{date} at character 9: "20261322" is no date`},
		"1122-":     {"1122_", `- at character 17: there is "_15`},
		"150405067": {"250405067", `{time} at character 18: "250405067" is no time of a day`},
		"00007":     {"0000x", `{n:5} at character 28: "0000x" is no number`},
		"-00007":    {"-+0007", `"+0007" is no number`},
		"07-S":      {"08-S", `{check:36} at character 34: it is S and should be `},
		"-S":        {"-", `{check:36} at character 34: "" is too short: 1 characters are needed`},
		"7-S":       {"7-S4", `it should end before "4"`},
	} {
		text := strings.Replace(good, was, test.is, 1)
		if _, err := f.Parse(text); !errors.Is(err, pawl.ErrInvalid) || !strings.Contains(err.Error(), test.why) {
			t.Errorf("%s: %v; it should say %s", text, err, test.why)
		}
	}
}

// Each single wrong character of an ID is found, whatever it becomes, and each swap of
// neighbours where the check digits promise it.
func TestParseFindsMistakes(t *testing.T) {
	for template, swaps := range map[string]bool{"ORD-{date:20060102}-{n:7}-{check}": true, "ORD-{date:20060102}-{n:7}-{digit}": false,
		"{date:2006.01.02}{time}{field:shop:3}{n:4}{check:36}": false, "{field:user}-{field:other:2}-{n:4}-{check}": true} {
		fields := map[string]string{}
		for name, value := range map[string]string{"shop": "E7Z", "user": "217", "other": "34"} {
			if strings.Contains(template, name) {
				fields[name] = value
			}
		}
		f := format(t, template, &readable.Options{Counter: from(990), Now: someDay()})
		dst := make([]string, 60)
		if _, err := generatorOf(t, f, fields).NextN(t.Context(), dst); err != nil {
			t.Fatal(err)
		}
		for _, good := range dst {
			text := []byte(good)
			for i, was := range text {
				for c := byte(' '); c <= '~'; c++ {
					text[i] = c
					if _, err := f.Parse(string(text)); (err == nil) != (c == was) {
						t.Errorf("%s: %s: %v", good, text, err)
					}
				}
				text[i] = was
				if swaps && i > 0 && text[i-1] != was {
					text[i-1], text[i] = was, text[i-1]
					if is, err := f.Parse(string(text)); err == nil {
						t.Errorf("%s: %s passes: %+v", good, text, is)
					}
					text[i-1], text[i] = text[i], was
				}
			}
		}
	}
}

// More numbers than there are digits is an error, and the IDs before the overflow are returned.
func TestOverflow(t *testing.T) {
	f := format(t, "{date}{n:2}", &readable.Options{Counter: from(97), Now: someDay()})
	g := generatorOf(t, f, nil)
	dst := make([]string, 5)
	n, err := g.NextN(t.Context(), dst)
	if n != 3 || !errors.Is(err, id.ErrExhausted) || !slices.Equal(dst[:n], []string{"2026112297", "2026112298", "2026112299"}) {
		t.Error(n, dst, err)
	}
	if text, err := g.Next(t.Context()); !errors.Is(err, id.ErrExhausted) || text != "" {
		t.Error(text, err)
	}
}

// Several machines whose clocks differ go over midnight: numbers start anew each day, each
// day's for all machines, and no ID is there twice.
func TestOverMidnight(t *testing.T) {
	daily, err := readable.NewDaily(registers(t), "orders")
	if err != nil {
		t.Fatal(err)
	}
	var check idtest.Checker[string]
	check.Unordered = true
	var group sync.WaitGroup
	begin := day(2026, 12, 31).Add(-time.Hour)
	const machines, ids = 5, 1500
	for m := range machines {
		clock := clockAt(begin)
		f := format(t, "{date}-{n:7}{digit}", &readable.Options{Counter: daily.Generator, Now: clock.Now})
		g, log := generatorOf(t, f, nil), check.Log()
		group.Go(func() {
			for i := range ids { // three midnights; each machine is some minutes ahead, and goes back now and then
				clock.set(begin.Add(time.Duration(i)*3*time.Minute + time.Duration(m*13-i%7)*time.Minute))
				text, err := g.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				log.Add(text)
			}
		})
	}
	group.Wait()
	if n, err := check.Check(); err != nil || n != machines*ids {
		t.Errorf("%d IDs: %v", n, err)
	}
	for _, d := range []string{"20261231", "20270101", "20270102"} {
		last, err := daily.Counter(d).Add(t.Context(), 1)
		if err != nil || last < 2000 || last > 480*machines+100 {
			t.Errorf("%s ends at %d, %v", d, last, err)
		}
	}
}

// A machine whose clock is ahead, by whatever time, never has today's counter start anew. Only
// exactly 400 days ahead does it end today's counter, and that is an error.
func TestClockAhead(t *testing.T) {
	daily, err := readable.NewDaily(registers(t), "orders")
	if err != nil {
		t.Fatal(err)
	}
	today := daily.Generator("20261122")
	n := int64(0)
	goOn := func(when string) {
		t.Helper()
		n++
		for _, g := range []id.Generator[int64]{today, daily.Generator("20261122")} {
			if is, err := g.Next(t.Context()); err != nil || is != n {
				t.Errorf("%s: %d, %v; not %d", when, is, err, n)
			}
			n++
		}
		n--
	}
	goOn("at first")
	for ahead := 1; ahead < 400; ahead++ {
		d := day(2026, 11, 22).AddDate(0, 0, ahead).Format("20060102")
		if is, err := daily.Generator(d).Next(t.Context()); err != nil || is != 1 {
			t.Fatalf("%s: %d, %v", d, is, err)
		}
	}
	goOn("after 399 days ahead")
	if is, err := daily.Generator("20271227").Next(t.Context()); err != nil || is != 1 {
		t.Fatal(is, err)
	}
	for _, g := range []id.Generator[int64]{today, daily.Generator("20261122")} {
		if is, err := g.Next(t.Context()); !errors.Is(err, readable.ErrDay) {
			t.Errorf("%d, %v", is, err)
		}
	}
	for d, class := range map[string]error{"2026": pawl.ErrInvalid, "20261131": pawl.ErrInvalid, "19691231": pawl.ErrInvalid} {
		if _, err := daily.Generator(d).Next(t.Context()); !errors.Is(err, class) {
			t.Errorf("%s: %v", d, err)
		}
	}
	if last, err := daily.Counter("20261123").Add(t.Context(), 1<<36-2); err != nil || last != 1<<36-1 {
		t.Error(last, err)
	}
	if last, err := daily.Counter("20261123").Add(t.Context(), 1); !errors.Is(err, id.ErrExhausted) {
		t.Error(last, err)
	}
	for _, name := range []string{"", strings.Repeat("x", 191), "a\n"} {
		if _, err := readable.NewDaily(registers(t), name); !errors.Is(err, pawl.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// closing is a generator that knows whether it was closed, and by whom it is used.
type closing struct {
	id.Generator[int64]
	closed, using atomic.Int64
	wait          chan struct{} // nil: not
}

func (c *closing) NextN(ctx context.Context, dst []int64) (int, error) {
	c.using.Add(1)
	defer c.using.Add(-1)
	if c.wait != nil {
		<-c.wait
	}
	if c.closed.Load() > 0 {
		return 0, pawl.ErrClosed
	}
	return c.Generator.NextN(ctx, dst)
}

func (c *closing) Close(context.Context) error {
	if c.using.Load() > 0 {
		return errors.New("it is in use")
	}
	c.closed.Add(1)
	return nil
}

// Generators of days that are over are closed, and never while they are used. The day of an
// ID is the day of its counter, however long the counter takes.
func TestOldDaysAreClosed(t *testing.T) {
	clock := clockAt(day(2026, 11, 22))
	made := make(map[string]*closing)
	slow := &closing{Generator: of(1), wait: make(chan struct{})}
	f := format(t, "{date}-{n:3}", &readable.Options{Now: clock.Now, Counter: func(day string) id.Generator[int64] {
		if day == "20261122" && made[day] == nil {
			made[day] = slow
		} else {
			made[day] = &closing{Generator: of(1)}
		}
		return made[day]
	}})
	g := generatorOf(t, f, nil)
	late := make(chan string)
	go func() {
		text, err := g.Next(t.Context())
		late <- fmt.Sprint(text, err)
	}()
	for slow.using.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for i := 1; i < 10; i++ {
		clock.set(day(2026, 11, 22+i))
		if text, err := g.Next(t.Context()); err != nil || text != clock.Now().Format("20060102")+"-001" {
			t.Error(text, err)
		}
	}
	if slow.closed.Load() != 0 {
		t.Error("it was closed while it was used")
	}
	close(slow.wait)
	if text := <-late; text != "20261122-001<nil>" {
		t.Error(text)
	}
	if err := f.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for d, c := range made {
		if c.closed.Load() != 1 {
			t.Errorf("%s was closed %d times", d, c.closed.Load())
		}
	}
	if len(made) != 10 {
		t.Errorf("%d days", len(made))
	}
}

// With batches, several machines, and a store that all share.
func TestWithSegments(t *testing.T) {
	r := registers(t)
	check := idtest.Checker[string]{Unordered: true}
	var group sync.WaitGroup
	for range 3 {
		daily, err := readable.NewDaily(r, "orders")
		if err != nil {
			t.Fatal(err)
		}
		clock := clockAt(day(2026, 11, 22))
		f := format(t, "{date}-{n:9}", &readable.Options{Now: clock.Now, Counter: func(day string) id.Generator[int64] {
			g, err := segment.New(daily.Counter(day), &segment.Options{MinStep: 10, MaxStep: 100})
			if err != nil {
				t.Error(err)
				return nil
			}
			return g
		}})
		t.Cleanup(func() {
			if err := f.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		for range 4 {
			log := check.Log()
			group.Go(func() {
				dst := make([]string, 20)
				for i := range 100 {
					clock.set(day(2026, 11, 22+i/15))
					n, err := generatorOf(t, f, nil).NextN(t.Context(), dst)
					if err != nil {
						t.Error(err)
						return
					}
					log.Add(dst[:n]...)
				}
			})
		}
	}
	group.Wait()
	if n, err := check.Check(); err != nil || n != 3*4*100*20 {
		t.Errorf("%d IDs: %v", n, err)
	}
}
