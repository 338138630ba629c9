// Package readable makes IDs that people read and type, such as ORD-20261122-0000123-8. An ID has
// a business prefix, fields of the caller, a date or a time to the millisecond, a counter
// and a check digit.
//
//	orders, err := readable.New("ORD-{date:20060102}-{n:7}-{digit}", &readable.Options{Counter: daily.Generator})
//
// # Templates
//
// Text outside of braces is as it is. In braces are:
//
//	{n:7}            the counter, with leading zeros: 1 to 18 digits. Exactly one.
//	{date:20060102}  the day, by the parts 2006 or 06, 01 and 02 with - . _ or nothing between
//	{time}           the time of the day to the ms, as 235959999
//	{field:user}     a text of the caller, 1 to 32 of 0-9 and A-Z; before what is neither, or at the end
//	{field:user:4}   the same with exactly so many characters
//	{digit}          a check digit by ISO 7064 MOD 11,10; at the end, where fields are digits
//	{check}          two check digits by ISO 7064 MOD 97-10; as {digit}
//	{check:36}       a check digit or letter by ISO 7064 MOD 37,36; at the end
//
// A template with a check has one field without a width at most, because a check covers no separators.
//
// # What is promised
//
//   - IDs of one template and counter are unique: the counter is that of the day that is in
//     the ID, however long it took. In a template without a date it never starts anew.
//   - [Format.Parse] finds every single wrong character and, with {check}, every two
//     neighbours that are swapped. The hybrid systems miss some swaps: {digit} 2.2 %, {check:36} 0.2 %.
//   - A counter that has more digits than there is room for is [id.ErrExhausted].
//
// All machines have to use one [Options.Zone].
package readable

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

// Options are the settings of a [Format].
type Options struct {
	// Counter returns the generator of the numbers of a day, as "20261122", or of "" for a
	// template without a date. For one day it has to go on with one counter, in every process:
	// see [Daily]. Counter is called when a day comes up, and again when the day had not been used
	// among several others. Counter must not block. A generator with a method Close(context.Context) error is closed
	// when other days have taken its place. Required to make IDs, not to parse them.
	Counter func(day string) id.Generator[int64]

	// Zone is where the day begins and the time is told. Default UTC.
	Zone *time.Location

	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Format makes and parses IDs of a template. A Format is safe for concurrent use.
type Format struct {
	parts []part
	opts  Options
	days  days
}

// New returns the format of a template. A mistake in the template is an error that matches
// [pawl.ErrInvalid] and says the allowed form. Nil opts are the defaults.
func New(template string, opts *Options) (*Format, error) {
	f := &Format{}
	if opts != nil {
		f.opts = *opts
	}
	if f.opts.Zone == nil {
		f.opts.Zone = time.UTC
	}
	if f.opts.Now == nil {
		f.opts.Now = time.Now
	}
	f.days.open = f.opts.Counter
	var err error
	if f.parts, err = parse(template); err != nil {
		return nil, fmt.Errorf("%w: template %q: %w", pawl.ErrInvalid, template, err)
	}
	return f, nil
}

// has returns the part of this kind, or nil.
func (f *Format) has(k kind) *part {
	for i := range f.parts {
		if f.parts[i].kind == k {
			return &f.parts[i]
		}
	}
	return nil
}

// Generator returns the generator of IDs with these values of the template's fields: all
// of them, and no others, else the error matches [pawl.ErrInvalid].
func (f *Format) Generator(fields map[string]string) (id.Generator[string], error) {
	if f.opts.Counter == nil {
		return nil, fmt.Errorf("%w: Options.Counter is nil: it makes the numbers", pawl.ErrInvalid)
	}
	known := 0
	values := make(map[string]string)
	for _, p := range f.parts {
		if p.kind != field {
			continue
		}
		value, ok := fields[p.text]
		if !ok {
			return nil, fmt.Errorf("%w: field %q is missing", pawl.ErrInvalid, p.text)
		}
		if err := f.checkField(p, value); err != nil {
			return nil, fmt.Errorf("%w: %w", pawl.ErrInvalid, err)
		}
		known++
		values[p.text] = value
	}
	if known != len(fields) {
		for name := range fields {
			if _, ok := values[name]; !ok {
				return nil, fmt.Errorf("%w: field %q is not in the template", pawl.ErrInvalid, name)
			}
		}
	}
	return generator{f, values}, nil
}

// Close closes the generators of days that have a method Close. All calls must have ended.
func (f *Format) Close(ctx context.Context) error { return f.days.prune(ctx, 0) }

type generator struct {
	*Format
	fields map[string]string
}

func (g generator) Next(ctx context.Context) (string, error) {
	var one [1]string
	_, err := g.NextN(ctx, one[:])
	return one[0], err
}

// NextN takes the time once: the day in an ID is the day of its counter, also when the
// numbers come after midnight.
func (g generator) NextN(ctx context.Context, dst []string) (n int, err error) {
	if len(dst) == 0 {
		return 0, nil
	}
	now, day := g.opts.Now().In(g.opts.Zone), ""
	if g.has(date) != nil {
		day = now.Format("20060102")
	}
	counter, release := g.days.take(ctx, day)
	defer release()
	if counter == nil {
		return 0, fmt.Errorf("%w: Options.Counter returned nil for day %q", pawl.ErrInvalid, day)
	}
	numbers := make([]int64, len(dst))
	made, err := counter.NextN(ctx, numbers)
	for _, number := range numbers[:made] {
		text, err := g.format(now, number)
		if err != nil {
			return n, err
		}
		dst[n] = text
		n++
	}
	if err != nil {
		return n, fmt.Errorf("number of day %q: %w", day, err)
	}
	return n, nil
}

// format puts the parts together.
func (g generator) format(now time.Time, number int64) (string, error) {
	var all, checked strings.Builder
	for _, p := range g.parts {
		text := ""
		switch p.kind {
		case literal:
			all.WriteString(p.text)
			continue
		case date:
			text = now.Format(p.text)
		case clock:
			text = clockText(now)
		case field:
			text = g.fields[p.text]
		case count:
			text = strconv.FormatInt(number, 10)
			if number < 1 {
				return "", fmt.Errorf("the generator of Options.Counter returned %d: numbers begin with 1", number)
			}
			if len(text) > p.width {
				return "", fmt.Errorf("%w: the counter is at %d, and {n:%d} has room for %d digits", id.ErrExhausted, number, p.width, p.width)
			}
			text = strings.Repeat("0", p.width-len(text)) + text
		case check:
			text = p.system.of(checked.String())
		}
		all.WriteString(text)
		checked.WriteString(digitsOf(text))
	}
	return all.String(), nil
}

// clockText is the time of the day to the ms. The layouts of package time want a dot before the ms.
func clockText(t time.Time) string { return strings.Replace(t.Format("150405.000"), ".", "", 1) }

// digitsOf is the text that a check digit covers of a part: all but the separators.
func digitsOf(text string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("-._", r) {
			return -1
		}
		return r
	}, text)
}

// days are the generators of the days used last. One whose clock jumps comes back to a
// day and finds it here, or asks for it anew.
type days struct {
	open func(day string) id.Generator[int64]

	mu  sync.Mutex
	all []*dayInUse // used last at the end
}

// keepDays is how many days a process has generators of. These are the days of both sides of
// midnight, and two more that a clock which is wrong for a moment may name.
const keepDays = 4

type dayInUse struct {
	day   string
	of    id.Generator[int64]
	users int
}

// take returns the generator of a day, which stays open until release is called.
func (d *days) take(ctx context.Context, day string) (of id.Generator[int64], release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var is *dayInUse
	for i, have := range d.all {
		if have.day == day {
			is, d.all = have, append(d.all[:i], d.all[i+1:]...)
			break
		}
	}
	if is == nil {
		is = &dayInUse{day: day, of: d.open(day)}
	}
	if is.of == nil {
		return nil, func() {}
	}
	is.users++
	d.all = append(d.all, is)
	return is.of, func() {
		d.mu.Lock()
		is.users--
		d.mu.Unlock()
		d.prune(ctx, keepDays) //nolint:errcheck // its numbers are left out, which is all that can be lost
	}
}

// prune closes the generators that nobody uses, but keeps those used last.
func (d *days) prune(ctx context.Context, keep int) (err error) {
	d.mu.Lock()
	var old []*dayInUse
	for i := 0; i < len(d.all) && len(d.all) > keep; {
		if d.all[i].users > 0 {
			i++
			continue
		}
		old = append(old, d.all[i])
		d.all = append(d.all[:i], d.all[i+1:]...)
	}
	d.mu.Unlock()
	for _, o := range old {
		if closer, ok := o.of.(interface{ Close(context.Context) error }); ok {
			if e := closer.Close(ctx); e != nil {
				err = fmt.Errorf("close the counter of day %q: %w", o.day, e)
			}
		}
	}
	return err
}
