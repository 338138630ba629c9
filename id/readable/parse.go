package readable

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
)

// Parts are what an ID says.
type Parts struct {
	// Time is the date and the time of the day, as far as the template has them. Without {time} it
	// is the start of the day; without {date} a time on 1 January of the year 0; else zero.
	Time   time.Time
	Number int64
	Fields map[string]string
	Check  string // the check digits, which are right
}

// Parse reads an ID of this format. The error of Parse matches [pawl.ErrInvalid] and names the
// first part that is wrong, with its text and the expected text.
func (f *Format) Parse(text string) (Parts, error) {
	is := Parts{Fields: make(map[string]string)}
	var checked strings.Builder
	year, month, day, ofDay := 0, time.January, 1, time.Duration(0)
	rest := text
	for _, p := range f.parts {
		piece, err := p.cut(rest)
		if err == nil {
			switch p.kind {
			case date:
				var t time.Time
				t, err = parseDate(p.text, piece)
				year, month, day = t.Date()
			case clock:
				ofDay, err = parseClock(piece)
			case count:
				is.Number, err = parseNumber(piece)
			case field:
				is.Fields[p.text] = piece
				err = f.checkField(p, piece)
			case check:
				if want := p.system.of(checked.String()); piece != want {
					err = fmt.Errorf("it is %s and should be %s: a character is wrong, or two are swapped", piece, want)
				}
				is.Check = piece
			}
		}
		if err != nil {
			return Parts{}, fmt.Errorf("%w: ID %.100q: %s at character %d: %w", pawl.ErrInvalid, text, p.source, len(text)-len(rest)+1, err)
		}
		if p.kind != literal {
			checked.WriteString(digitsOf(piece))
		}
		rest = rest[len(piece):]
	}
	if rest != "" {
		return Parts{}, fmt.Errorf("%w: ID %.100q: it should end before %.40q", pawl.ErrInvalid, text, rest)
	}
	if f.has(date) != nil || f.has(clock) != nil {
		is.Time = time.Date(year, month, day, 0, 0, 0, 0, f.opts.Zone)
		if f.has(clock) != nil { // the hours of a day may be 23 or 25
			is.Time = time.Date(year, month, day, int(ofDay.Hours()), int(ofDay.Minutes())%60, int(ofDay.Seconds())%60, int(ofDay%time.Second), f.opts.Zone)
		}
	}
	return is, nil
}

// cut returns the beginning of rest that is this part.
func (p part) cut(rest string) (string, error) {
	switch {
	case p.kind == literal && !strings.HasPrefix(rest, p.text):
		return "", fmt.Errorf("there is %.40q", rest)
	case p.width > 0 && len(rest) < p.width:
		return "", fmt.Errorf("%q is too short: %d characters are needed", rest, p.width)
	case p.width > 0:
		return rest[:p.width], nil
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return !strings.ContainsRune(alphabet, r) })
	if end < 0 {
		end = len(rest)
	}
	return rest[:end], nil
}

func parseDate(layout, text string) (time.Time, error) {
	t, err := time.Parse(layout, text)
	if err != nil || t.Format(layout) != text {
		return time.Time{}, fmt.Errorf("%q is no date", text)
	}
	return t, nil
}

func parseClock(text string) (time.Duration, error) {
	n, err := parseNumber(text)
	h, m, s, ms := n/1e7, n/1e5%100, n/1e3%100, n%1e3
	if err != nil || h > 23 || m > 59 || s > 59 {
		return 0, fmt.Errorf("%q is no time of a day to the ms", text)
	}
	return time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(s)*time.Second + time.Duration(ms)*time.Millisecond, nil
}

// parseNumber takes digits only, no sign.
func parseNumber(text string) (int64, error) {
	if strings.Trim(text, alphabet[:10]) != "" {
		return 0, fmt.Errorf("%q is no number", text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", text)
	}
	return n, nil
}
