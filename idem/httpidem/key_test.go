package httpidem

import (
	"net/http"
	"strings"
	"testing"
)

// TestParseKey: RFC 9651, section 4.2.5, and bare texts by option.
func TestParseKey(t *testing.T) {
	for _, c := range []struct {
		line, quoted, unquoted string // "-": refused
	}{
		{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{` "a b" `, "a b", "a b"},
		{`"a\"b\\c"`, `a"b\c`, `a"b\c`},
		{`"\\\""`, `\"`, `\"`},
		{`""`, "", ""},
		{`8e03978e-40d5`, "-", "8e03978e-40d5"},
		{`"a`, "-", "-"},
		{`a"`, "-", "-"},
		{`"`, "-", "-"},
		{`"a"b"`, "-", "-"},
		{`"a\"`, "-", "-"},
		{`"a\n"`, "-", "-"},
		{`"a";p=1`, "-", "-"},
		{`"a", "b"`, "-", "-"},
		{`:YQ==:`, "-", ":YQ==:"},
		{"\"a\tb\"", "-", "-"},
		{"\"\x7f\"", "-", "-"},
		{`"é"`, "-", "-"},
		{`é`, "-", "-"},
		{`a,b`, "-", "-"},
		{`a;b`, "-", "-"},
		{`a b`, "-", "-"},
		{``, "-", ""},
	} {
		for unquoted, want := range map[bool]string{false: c.quoted, true: c.unquoted} {
			got, err := parseKey(c.line, unquoted)
			if (err != nil) != (want == "-") || err == nil && got != want {
				t.Errorf("%q, unquoted %v: %q, %v; it should be %q", c.line, unquoted, got, err, want)
			}
		}
	}
}

// FuzzKey: what the client writes the server reads, and what the server accepts is one text.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{`a`, `"a"`, `"\"\\"`, `"\`, "é", "\x00", `a;b`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if line, err := formatKey(text); err == nil {
			if back, err := readKey(http.Header{Header: {line}}, false, len(text)); err != nil || back != text {
				t.Errorf("%q is written %q and read %q, %v", text, line, back, err)
			}
		}
		key, err := parseKey(text, false)
		if err != nil {
			return
		}
		for _, c := range []byte(key) {
			if c < ' ' || c > '~' {
				t.Errorf("%q has the key %q", text, key)
			}
		}
		if loose, err := parseKey(text, true); err != nil || loose != key {
			t.Errorf("%q is %q, or %q with unquoted keys, %v", text, key, loose, err)
		}
		if line, err := formatKey(key); key != "" && (err != nil || line != strings.Trim(text, " ")) {
			t.Errorf("%q has the key %q, which is written %q, %v", text, key, line, err)
		}
	})
}

// FuzzDecodeResponse: a record that another program wrote is an error, and none panics.
func FuzzDecodeResponse(f *testing.F) {
	f.Add([]byte("http/1 200 \nContent-Type: a\n\nbody"))
	f.Add([]byte("http/1 200 too large\n\n"))
	f.Add([]byte("http/2 200"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decodeResponse(text)
		if err != nil {
			return
		}
		if r.status < 200 || len(r.body) > len(text) {
			t.Errorf("%q is %+v", text, r)
		}
	})
}
