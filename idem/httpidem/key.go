package httpidem

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Header is the name of the header with the key.
const Header = "Idempotency-Key"

// ReplayedHeader is true in a response that was kept from an earlier request.
const ReplayedHeader = "Idempotent-Replayed"

var errMissing = errors.New("the request has no " + Header)

// readKey returns the key of a request, of at most this many bytes.
func readKey(h http.Header, unquoted bool, most int) (string, error) {
	lines := h[Header]
	switch len(lines) {
	case 0:
		return "", errMissing
	case 1:
	default:
		return "", fmt.Errorf("the request has %d headers %s: 1 is allowed", len(lines), Header)
	}
	key, err := parseKey(lines[0], unquoted)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s is no string of RFC 9651: %w", Header, err)
	case key == "" || len(key) > most:
		return "", fmt.Errorf("%s has %d bytes: 1 to %d are allowed", Header, len(key), most)
	}
	return key, nil
}

// parseKey reads an sf-string: RFC 9651, section 4.2.5. Parameters after it are refused, because the
// draft allows none. A bare text counts as a key if unquoted is true.
func parseKey(line string, unquoted bool) (string, error) {
	line = strings.Trim(line, " ")
	if unquoted && !strings.HasPrefix(line, `"`) {
		return bareKey(line)
	}
	if len(line) < 2 || line[0] != '"' || line[len(line)-1] != '"' {
		return "", errors.New("it is not in double quotes")
	}
	inner := line[1 : len(line)-1]
	escapes := 0
	for i := 0; i < len(inner); i++ {
		switch c := inner[i]; {
		case c < ' ' || c > '~':
			return "", fmt.Errorf("byte %d is %#x: printable ASCII is allowed", i, c)
		case c == '"':
			return "", fmt.Errorf("a double quote at byte %d has no backslash before it", i)
		case c == '\\':
			i++
			escapes++
			if i == len(inner) || inner[i] != '"' && inner[i] != '\\' {
				return "", fmt.Errorf("a backslash at byte %d is followed by neither a double quote nor a backslash", i-1)
			}
		}
	}
	if escapes == 0 {
		return inner, nil
	}
	return unescape.Replace(inner), nil
}

// bareKey accepts the keys that clients send without quotes, such as UUIDs.
func bareKey(line string) (string, error) {
	for i := range len(line) {
		if c := line[i]; c <= ' ' || c > '~' || strings.IndexByte(`"\,;`, c) >= 0 {
			return "", fmt.Errorf("byte %d of the unquoted text is %#x: printable ASCII without quotes, backslashes, commas and semicolons is allowed", i, c)
		}
	}
	return line, nil
}

// formatKey writes an sf-string: RFC 9651, section 4.1.6.
func formatKey(key string) (string, error) {
	if key == "" {
		return "", errors.New("the key is empty")
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", fmt.Errorf("byte %d of the key is %#x: printable ASCII is allowed", i, key[i])
		}
	}
	return `"` + escape.Replace(key) + `"`, nil
}

var (
	escape   = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
)
