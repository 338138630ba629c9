package httpidem

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

// response is a response as a store keeps it. The first line has the format, the status and the reason why there is no body.
// A line for each value of a header follows, then an empty line and the body.
type response struct {
	status  int
	lacks   string // why the response was not kept; "": it was
	headers []field
	body    []byte
}

// field is a header with its values.
type field struct {
	name   string
	values []string
}

// responseFormat is the layout. A later layout has another name, which this build refuses.
const responseFormat = "http/1"

// maxKept is the size of a response that a store takes, with its headers.
const maxKept = idem.MaxResult

// The reasons why a response is not kept.
const (
	tooLarge = "too large"
	streamed = "streamed"
)

// untyped is the header that a handler sets to no value at all, so that package net/http adds none. The header is then kept as a line
// without a colon.
const untyped = "Content-Type"

// oneLine writes values as package net/http sends them.
var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// appendHead appends the lines before the body of a kept response, with the headers of these names, which are sorted.
func appendHead(text []byte, status int, lacks string, headers []field, names []string) []byte {
	text = strconv.AppendInt(append(text, responseFormat+" "...), int64(status), 10)
	text = append(append(append(text, ' '), lacks...), '\n')
	for _, f := range headers {
		if _, kept := slices.BinarySearch(names, f.name); !kept {
			continue
		}
		if f.name == untyped && len(f.values) == 0 {
			text = append(append(text, untyped...), '\n')
		}
		for _, value := range f.values {
			text = append(append(text, f.name...), ": "...)
			text = append(append(text, strings.Trim(oneLine.Replace(value), " \t")...), '\n')
		}
	}
	return append(text, '\n')
}

// decodeResponse reads a kept response. The body is that of text.
func decodeResponse(text []byte) (*response, error) {
	bad := func(what string) (*response, error) {
		return nil, fmt.Errorf("%w: the key has no response of this package: %s", pawl.ErrMismatch, what)
	}
	line, rest, ok := bytes.Cut(text, []byte("\n"))
	parts := strings.SplitN(string(line), " ", 3)
	if !ok || len(parts) != 3 || parts[0] != responseFormat {
		return bad(fmt.Sprintf("its first line is %.60q", line))
	}
	status, err := strconv.Atoi(parts[1])
	if err != nil || status < 200 || status > 999 {
		return bad(fmt.Sprintf("its status is %.60q", parts[1]))
	}
	r := &response{status: status, lacks: parts[2]}
	for {
		line, rest, ok = bytes.Cut(rest, []byte("\n"))
		if !ok {
			return bad("it has no end of the headers")
		}
		if len(line) == 0 {
			r.body = rest
			return r, nil
		}
		if string(line) == untyped {
			r.headers = append(r.headers, field{name: untyped})
			continue
		}
		name, value, ok := strings.Cut(string(line), ": ")
		if !ok {
			return bad(fmt.Sprintf("a header is %.60q", line))
		}
		r.headers = append(r.headers, field{name, []string{value}})
	}
}

// replay replies with a kept response.
func (m *middleware) replay(w http.ResponseWriter, r *response) {
	h := w.Header()
	h.Set(ReplayedHeader, "true")
	if r.lacks != "" {
		m.refuse(w, notKept.because(fmt.Sprintf("The request was carried out with status %d. The response was %s, so it was not kept.", r.status, r.lacks)))
		return
	}
	for _, name := range m.opts.Headers { // those of middlewares around this one
		delete(h, name)
	}
	for _, f := range r.headers {
		h[f.name] = append(h[f.name], f.values...)
	}
	if bodyAllowed(r.status) {
		h.Set("Content-Length", strconv.Itoa(len(r.body)))
	}
	send(w, r.status, r.body)
}

// bodyAllowed reports whether a response with this status has a body: RFC 9110, section 6.4.1.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
