// Package reasons keeps the texts of errors in a column that operators read.
package reasons

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

const most = 500 // bytes of a reason

// Write writes a text. A PostgreSQL of another encoding than UTF-8 may lack a character of the text, or a byte if the client has named no encoding.
// Then Write writes the text again, in ASCII with escapes.
func Write(text string, write func(reason string) error) error {
	text = cut(strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", " "), " "))
	err := write(text)
	var code interface{ SQLState() string }
	if errors.As(err, &code) && slices.Contains([]string{"22P05", "22021"}, code.SQLState()) { // untranslatable, or not in the repertoire
		ascii := strconv.QuoteToASCII(text)
		err = write(cut(ascii[1 : len(ascii)-1]))
	}
	return err
}

// cut cuts a text, and leaves no part of a character.
func cut(text string) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}
