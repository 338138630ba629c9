package httpidem

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

// response is what a store keeps of a response: a line with format, status and the reason why there is no body; a line
// for each value of a header; an empty line; the body.
type response struct {
	status  int
	lacks   string // why the response was not kept; "": it was
	headers []field
	body    []byte
}

// field is a value of a header.
type field struct{ name, value string }

// responseFormat is the layout. A later layout has another name, which this build refuses.
const responseFormat = "http/1"

// The reasons why a response is not kept.
const (
	tooLarge = "too large"
	streamed = "streamed"
)

// oneLine writes values as package net/http sends them.
var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// collect returns the values of the named headers, as they are sent.
func collect(h http.Header, names []string) (fields []field) {
	for _, name := range names {
		for _, value := range h[name] {
			fields = append(fields, field{name, strings.Trim(oneLine.Replace(value), " \t")})
		}
	}
	return fields
}

// encode returns the response as it is kept. A response that no store takes loses headers and body, and says so.
func (r *response) encode() []byte {
	size := len(responseFormat) + len(r.lacks) + len(r.body) + 16
	for _, f := range r.headers {
		size += len(f.name) + len(f.value) + 3
	}
	if size > idem.MaxResult {
		return (&response{status: r.status, lacks: tooLarge}).encode()
	}
	text := append(make([]byte, 0, size), responseFormat...)
	text = strconv.AppendInt(append(text, ' '), int64(r.status), 10)
	text = append(append(append(text, ' '), r.lacks...), '\n')
	for _, f := range r.headers {
		text = append(append(text, f.name...), ": "...)
		text = append(append(text, f.value...), '\n')
	}
	return append(append(text, '\n'), r.body...)
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
		name, value, ok := strings.Cut(string(line), ": ")
		if !ok {
			return bad(fmt.Sprintf("a header is %.60q", line))
		}
		r.headers = append(r.headers, field{name, value})
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
		h[f.name] = append(h[f.name], f.value)
	}
	send(w, r.status, r.body)
}

// send replies with the whole of a body.
func send(w http.ResponseWriter, status int, body []byte) {
	if h := w.Header(); bodyAllowed(status) && h["Content-Length"] == nil {
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		w.Write(body) //nolint:errcheck // the client has gone, and a repeat gets it
	}
}

// bodyAllowed reports whether a response with this status has a body: RFC 9110, section 6.4.1.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
