package idem

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
)

// MaxPart is the largest length of the scope and of the ID of a [Key] in bytes.
const MaxPart = 255

// maxName is the largest length of the name under which stores keep a key. The column of a primary
// key has room for it in every database, and so has the name of a value of pawl.
const maxName = 200

// Key names an operation that must take effect once, however often callers repeat it.
type Key struct {
	// Scope separates the keys of users and operations, such as "pay/user-7". A key that a client
	// has chosen needs the client's identity here. Without an identity, a client that guesses a key
	// reads the result of another client. 1 to 255 bytes of UTF-8 without control characters.
	Scope string
	// ID is the key in its scope, such as the text of the header Idempotency-Key. 1 to 255 bytes
	// of UTF-8 without control characters.
	ID string
}

// Validate returns an error that matches [pawl.ErrInvalid] unless stores take the key.
func (k Key) Validate() error {
	for _, part := range []struct{ field, text string }{{"Scope", k.Scope}, {"ID", k.ID}} {
		switch {
		case part.text == "" || len(part.text) > MaxPart:
			return fmt.Errorf("%w: Key.%s has %d bytes: 1 to %d are allowed", pawl.ErrInvalid, part.field, len(part.text), MaxPart)
		case !utf8.ValidString(part.text):
			return fmt.Errorf("%w: Key.%s is not UTF-8: %q", pawl.ErrInvalid, part.field, part.text)
		case strings.ContainsFunc(part.text, unicode.IsControl):
			return fmt.Errorf("%w: Key.%s has a control character: %q", pawl.ErrInvalid, part.field, part.text)
		}
	}
	return nil
}

// Name returns the text under which stores keep the key: the scope, a bar and the ID. A bar or a
// backslash in the scope has a backslash before it, so two keys never have one name. A name of
// more than 200 bytes is cut, and ends with a tilde and the SHA-256 of the whole name.
func (k Key) Name() string {
	name := escape.Replace(k.Scope) + "|" + k.ID
	if len(name) <= maxName && !strings.Contains(name, cutMark) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	end := cutMark + base64.RawURLEncoding.EncodeToString(sum[:])
	return strings.ToValidUTF8(name[:min(len(name), maxName-len(end))], "") + end
}

// cutMark stands before the sum of a name that was cut. A short name with this mark is treated as
// a long name, because it could be the name of another key otherwise.
const cutMark = "~"

var escape = strings.NewReplacer(`\`, `\\`, `|`, `\|`)

// String returns the scope and the ID, as errors and logs show them.
func (k Key) String() string { return k.Scope + "|" + k.ID }

// KeyOf makes a key of the business content of a request. Such a key is useful where callers send no key: two
// requests with equal content have the same key. The scope is the operation. Content is encoded as
// JSON; fields that differ between two attempts, such as the time of sending, must not be in it.
// The error matches [pawl.ErrInvalid] if content has no JSON, or if different content would have the same JSON. That is so
// of text that is not UTF-8, and of a struct without exported fields.
func KeyOf(operation string, content any) (Key, error) {
	text, err := json.Marshal(content)
	switch is := reflect.Indirect(reflect.ValueOf(content)); {
	case err != nil:
		return Key{}, fmt.Errorf("%w: content has no JSON: %w", pawl.ErrInvalid, err)
	case replaced(text):
		return Key{}, fmt.Errorf("%w: content has a text that is not UTF-8, which JSON would change", pawl.ErrInvalid)
	case string(text) == "{}" && is.Kind() == reflect.Struct && is.NumField() > 0 && !slices.ContainsFunc(reflect.VisibleFields(is.Type()), reflect.StructField.IsExported):
		return Key{}, fmt.Errorf("%w: content is a %v, of which JSON has no field", pawl.ErrInvalid, is.Type())
	}
	sum := sha256.Sum256(text)
	key := Key{Scope: operation, ID: hex.EncodeToString(sum[:])}
	return key, key.Validate()
}

// replaced reports whether JSON was made of text that is not UTF-8. Package json writes each bad byte as this escape. The
// character U+FFFD itself is written as it is.
func replaced(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if bytes.HasPrefix(text[i:], []byte(`\ufffd`)) {
			return true
		}
		i++ // the escaped character
	}
	return false
}

// NewToken returns a random ID for a form or a button. A server puts the token into the page that
// it sends. Both requests of a double click bring the same token, so they have the same key. A
// token has 26 letters and digits and cannot be guessed.
func NewToken() string { return rand.Text() }

// Fingerprint identifies the content of a request. A store keeps it beside the key, so that a
// key that is used again for another request is refused, see [ErrReused]. The zero Fingerprint
// says that the caller does not compare contents.
type Fingerprint [sha256.Size]byte

// FingerprintOf returns the fingerprint of the parts of a request, such as method, path and body.
// The fingerprint is their SHA-256, with the length before each part.
func FingerprintOf(parts ...[]byte) (f Fingerprint) {
	hash := sha256.New()
	for _, part := range parts {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part)))) //nolint:errcheck // a hash does not fail
		hash.Write(part)                                                  //nolint:errcheck // as above
	}
	hash.Sum(f[:0])
	return f
}

// Differs reports whether both fingerprints are set and are not equal.
func (f Fingerprint) Differs(other Fingerprint) bool {
	return f != other && f != Fingerprint{} && other != Fingerprint{}
}
