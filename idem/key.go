package idem

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding"
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
// of text that is not UTF-8. So is a struct of which JSON writes no field, anywhere in content: its fields are not exported.
// So are two fields with one name in JSON, of which JSON writes neither. So is a field that JSON leaves out, of a struct with a method that
// makes JSON, where JSON does not call this method. A struct that is embedded counts as part of the struct around it.
//
// Fields that JSON leaves out beside others do not count. Such a field is not exported, has the tag "-", or has the name of a
// field that is embedded less deeply. Methods that make JSON are trusted to write all, also those of an embedded field.
func KeyOf(operation string, content any) (Key, error) {
	text, err := json.Marshal(content)
	switch {
	case err != nil:
		return Key{}, fmt.Errorf("%w: content has no JSON: %w", pawl.ErrInvalid, err)
	case replaced(text):
		return Key{}, fmt.Errorf("%w: content has a text that is not UTF-8, which JSON would change", pawl.ErrInvalid)
	}
	through := walk{make(map[place]bool), make(map[reflect.Type][][]int)}
	if lost := through.lost(reflect.ValueOf(content)); lost != nil {
		return Key{}, fmt.Errorf("%w: content has a %v: JSON writes none of its fields, neither of two with one name, or omits a field that a method writes", pawl.ErrInvalid, lost)
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

// walk is a walk through content.
type walk struct {
	been   map[place]bool           // fields that JSON leaves out may lead round in a circle
	fields map[reflect.Type][][]int // the fields of a struct that may have a struct in them
}

type place struct {
	at     uintptr
	length int
	is     reflect.Type
}

// lost returns the type of the first struct in v of which JSON loses all fields, two with one name, or those of a method. Else nil.
func (w walk) lost(v reflect.Value) reflect.Type {
	if !v.IsValid() || writesItself(v) {
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		here := place{at: v.Pointer(), is: v.Type()}
		if v.Kind() == reflect.Slice {
			here.length = v.Len()
		}
		if v.IsNil() || plain(v.Type().Elem()) || w.been[here] {
			return nil
		}
		w.been[here] = true
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return w.lost(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if lost := w.lost(v.Index(i)); lost != nil {
				return lost
			}
		}
	case reflect.Map:
		for all := v.MapRange(); all.Next(); {
			if lost := w.lost(all.Value()); lost != nil {
				return lost
			}
		}
	case reflect.Struct:
		fields, known := w.fields[v.Type()]
		if !known {
			written := false
			if fields, written = fieldsOf(v.Type()); !written {
				return v.Type()
			}
			w.fields[v.Type()] = fields
		}
		for _, field := range fields {
			is, err := v.FieldByIndexErr(field)
			if err != nil {
				continue // the embedded pointer is nil
			}
			if lost := w.lost(is); lost != nil {
				return lost
			}
		}
	}
	return nil
}

// fieldsOf returns the fields of a struct that may have a struct in them, and whether JSON writes any field, and one of each name.
func fieldsOf(t reflect.Type) (fields [][]int, written bool) {
	is := shape{names: make(map[string]field)}
	is.add(t, nil, nil)
	for _, f := range is.names {
		if is.lost = is.lost || f.twice; !plain(f.of) {
			fields = append(fields, f.index)
		}
	}
	return fields, !is.lost && len(is.names) > 0 || t.NumField() == 0
}

// shape is what JSON writes of a struct, by the rules of package json.
type shape struct {
	names map[string]field
	lost  bool // a field that JSON leaves out is of a struct with a method that makes JSON, which JSON does not call
}

// field is the field that has a name in JSON.
type field struct {
	index []int
	of    reflect.Type
	rank  int  // the field with the smallest has the name
	twice bool // so has another field: JSON writes neither
}

// add adds the fields of t, which is embedded at index, in these types.
func (s *shape) add(t reflect.Type, index []int, around []reflect.Type) {
	if slices.Contains(around, t) {
		return // less deep fields have these names
	}
	own := encodes(reflect.PointerTo(t)) // has the methods of t too
	for i := range t.NumField() {
		of := t.Field(i)
		tag, inner := of.Tag.Get("json"), of.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		name, _, _ := strings.Cut(tag, ",")
		if strings.ContainsFunc(name, notInNames) {
			name = ""
		}
		f := field{index: append(slices.Clone(index), i), of: of.Type, rank: 2 * len(index)}
		embedded := of.Anonymous && inner.Kind() == reflect.Struct
		switch {
		case tag == "-" || !of.IsExported() && !embedded:
			s.lost = s.lost || own
		case embedded && name == "":
			s.add(inner, f.index, append(around, t))
		case name == "":
			f.rank++ // a tag goes before
			s.enter(of.Name, f)
		default:
			s.enter(name, f)
		}
	}
}

func (s *shape) enter(name string, f field) {
	is, known := s.names[name]
	if !known || f.rank < is.rank {
		is = f
	} else if f.rank == is.rank {
		is.twice = true
	}
	s.names[name] = is
}

// notInNames reports whether package json ignores the name of a tag for this character.
func notInNames(c rune) bool {
	return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c)
}

// writesItself reports whether the type of v makes the JSON. Methods of a pointer count where JSON has the address.
func writesItself(v reflect.Value) bool {
	return encodes(v.Type()) || v.CanAddr() && encodes(reflect.PointerTo(v.Type()))
}

func encodes(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Marshaler]()) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// plain reports whether no struct is in a value of this type. So a long text of bytes costs nothing.
func plain(t reflect.Type) bool { return t.Kind() <= reflect.Complex128 || t.Kind() == reflect.String }

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
