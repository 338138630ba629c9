package pawl

import (
	"unicode"
	"unicode/utf8"
)

// MaxName is the longest name in bytes.
const MaxName = 512

// checkText holds names, owners and labels to the limits of all stores.
func checkText(field, s string) error {
	if len(s) > MaxName {
		return invalid("%s has %d bytes: 1 to %d are allowed", field, len(s), MaxName)
	}
	return checkPlain(field, s)
}

// checkPlain does so for a text of any length.
func checkPlain(field, s string) error {
	switch {
	case s == "":
		return invalid("%s is empty: 1 to %d bytes of UTF-8 are allowed", field, MaxName)
	case !utf8.ValidString(s):
		return invalid("%s %q is not valid UTF-8", field, s)
	}
	for i, r := range s {
		if unicode.IsControl(r) {
			return invalid("%s %q has a control character at byte %d", field, s, i)
		}
	}
	return nil
}

// CheckName returns nil if a lock can have this name, else an [ErrInvalid] with the reason. CheckName
// needs no store, so a program can tell a user early.
func CheckName(name string) error { return checkText("name", name) }
