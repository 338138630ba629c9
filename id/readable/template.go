package readable

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// kind is what a part of a template stands for.
type kind int

const (
	literal kind = iota
	date
	clock
	count
	field
	check
)

// part is a part of a template.
type part struct {
	kind   kind
	text   string // of a literal, layout of a date, name of a field
	width  int    // in characters; 0: it varies
	system system // of a check
	source string // as it is in the template
}

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

const (
	mostDigits = 18
	mostField  = 32
)

var fieldNames = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,31}$`)

// parse reads a template and returns the first mistake.
func parse(template string) (parts []part, err error) {
	for rest := template; rest != ""; {
		text, after, brace := strings.Cut(rest, "{")
		if i := strings.IndexFunc(text, func(r rune) bool { return r == '}' || r > unicode.MaxASCII || r < ' ' || r == 0x7f }); i >= 0 {
			return nil, fmt.Errorf("text %q: it may have printable ASCII without }", text)
		}
		if text != "" {
			parts = append(parts, part{kind: literal, text: text, width: len(text), source: text})
		}
		if !brace {
			break
		}
		inside, next, found := strings.Cut(after, "}")
		if !found {
			return nil, fmt.Errorf("{%s: there is no }", inside)
		}
		p, err := parsePart(inside)
		if err != nil {
			return nil, fmt.Errorf("{%s}: %w", inside, err)
		}
		p.source = "{" + inside + "}"
		parts = append(parts, p)
		rest = next
	}
	return parts, checkParts(parts)
}

func parsePart(inside string) (part, error) {
	name, setting, has := strings.Cut(inside, ":")
	switch {
	case name == "n":
		width, err := strconv.Atoi(setting)
		if err != nil || width < 1 || width > mostDigits {
			return part{}, fmt.Errorf("the counter needs 1 to %d digits, as {n:7}", mostDigits)
		}
		return part{kind: count, width: width}, nil
	case name == "date":
		if !has {
			setting = "20060102"
		}
		return part{kind: date, text: setting, width: len(setting)}, checkLayout(setting)
	case name == "time" && !has:
		return part{kind: clock, width: len("235959999")}, nil
	case name == "field":
		return parseField(setting)
	case inside == "digit":
		return part{kind: check, system: hybrid(10), width: 1}, nil
	case inside == "check":
		return part{kind: check, system: mod97{}, width: 2}, nil
	case inside == "check:36":
		return part{kind: check, system: hybrid(36), width: 1}, nil
	}
	return part{}, errors.New("no such part: {n:7}, {date:20060102}, {time}, {field:name}, {field:name:4}, {digit}, {check} and {check:36} are known")
}

func parseField(setting string) (part, error) {
	name, width, fixed := strings.Cut(setting, ":")
	p := part{kind: field, text: name}
	if !fieldNames.MatchString(name) {
		return p, errors.New("the name of a field has 1 to 32 letters, digits and _, and begins with a letter")
	}
	if fixed {
		var err error
		if p.width, err = strconv.Atoi(width); err != nil || p.width < 1 || p.width > mostField {
			return p, fmt.Errorf("the width of a field is 1 to %d", mostField)
		}
	}
	return p, nil
}

// checkLayout wants each part of a day once: without one of them two days would look alike,
// while the counter starts anew.
func checkLayout(layout string) error {
	rest := layout
	for _, names := range [][]string{{"2006", "06"}, {"01"}, {"02"}} {
		found := false
		for _, name := range names {
			if !found && strings.Contains(rest, name) {
				rest, found = strings.Replace(rest, name, " ", 1), true // so that its neighbours do not join
			}
		}
		if !found {
			return errors.New("a date needs the year as 2006 or 06, the month as 01 and the day as 02, because the counter starts anew each day")
		}
	}
	if strings.Trim(rest, " -._") != "" {
		return errors.New("a date may have -, . and _ besides 2006 or 06, 01 and 02")
	}
	return nil
}

// checkParts looks at the template as a whole.
func checkParts(parts []part) error {
	names := make(map[string]bool)
	number, vary := make(map[kind]int), 0
	for i, p := range parts {
		number[p.kind]++
		switch {
		case p.kind == check && i < len(parts)-1:
			return fmt.Errorf("%s has to be at the end", p.source)
		case p.kind == field && names[p.text]:
			return fmt.Errorf("%s: there are two fields of this name", p.source)
		case p.kind == field && p.width == 0 && i < len(parts)-1 &&
			(parts[i+1].kind != literal || strings.Contains(alphabet, parts[i+1].text[:1])):
			return fmt.Errorf("%s needs a width, as {field:%s:4}, or after it a character that is neither 0-9 nor A-Z: else nobody knows where it ends",
				p.source, p.text)
		}
		if p.kind == field {
			names[p.text] = true
		}
		if p.kind == field && p.width == 0 {
			vary++
		}
		if p.kind == check && vary > 1 { // 12-34 that is typed as 1-234 has the same check
			return fmt.Errorf("%s: a check covers no separators: all fields but one need a width", p.source)
		}
	}
	switch {
	case number[count] != 1:
		return fmt.Errorf("it has %d counters: one is needed, as {n:7}", number[count])
	case number[date] > 1 || number[clock] > 1:
		return errors.New("it has two dates or times: one of each is allowed")
	}
	return nil
}

// checkField returns the mistake in the value of a field.
func (f *Format) checkField(p part, value string) error {
	allowed, name := alphabet, "0-9 and A-Z"
	if c := f.has(check); c != nil && c.system.size() == 10 {
		allowed, name = alphabet[:10], "0-9, which is what "+c.source+" covers"
	}
	switch {
	case p.width > 0 && len(value) != p.width:
		return fmt.Errorf("field %q is %q: it has to have %d characters", p.text, value, p.width)
	case value == "" || len(value) > mostField:
		return fmt.Errorf("field %q is %q: 1 to %d characters are allowed", p.text, value, mostField)
	case strings.Trim(value, allowed) != "":
		return fmt.Errorf("field %q is %q: allowed are %s", p.text, value, name)
	}
	return nil
}
