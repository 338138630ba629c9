package httpidem

import (
	"net/http"
	"strconv"
	"strings"
)

// recorder is the http.ResponseWriter of a handler. A recorder holds the response back until the handler returns, so that a client
// sees no response that is not kept. A response that is too large or streamed goes to the client at once, and is not kept.
type recorder struct {
	under  http.ResponseWriter
	opts   *Options
	status int     // 0: the handler has not said it
	header []field // when it has said it: later changes are none of the response
	text   []byte  // the response as it is kept, body last; nil before the first byte of the body
	head   int     // where the body begins in text
	lacks  string  // why the response went to the client already

	fields [12]field // for header: most responses have no more
	length [1]string // for Content-Length
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.under.Header() }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	switch {
	case r.status != 0:
		return
	case status >= 100 && status < 200:
		r.under.WriteHeader(status)
		return
	case status < 200 || status > 999:
		panic("httpidem: a handler has replied with an invalid status")
	}
	r.status, r.header = status, r.fields[:0]
	trailers := false
	for name, values := range r.under.Header() {
		r.header = append(r.header, field{name, values})
		trailers = trailers || isTrailer(name)
	}
	if trailers {
		r.pass(streamed)
	}
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(data []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	switch {
	case !bodyAllowed(r.status):
		return 0, http.ErrBodyNotAllowed
	case r.lacks == "" && len(data) > r.opts.MaxResponse-len(r.body()):
		r.pass(tooLarge)
	}
	if r.lacks != "" {
		return r.under.Write(data)
	}
	r.begin(len(data))
	r.text = append(r.text, data...)
	return len(data), nil
}

// isTrailer reports whether the header declares trailers, or is one.
func isTrailer(name string) bool {
	return name == "Trailer" || strings.HasPrefix(name, http.TrailerPrefix)
}

// trailers returns the trailers that the handler has set after it had said the status.
func (r *recorder) trailers() (late []field) {
	for name, values := range r.under.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			late = append(late, field{name, values})
		}
	}
	return late
}

// begin writes the head of the kept response, before a body of at least size bytes.
func (r *recorder) begin(size int) {
	if r.text != nil {
		return
	}
	r.text = appendHead(make([]byte, 0, 512+size), r.status, "", r.header, r.opts.Headers)
	r.head = len(r.text)
}

func (r *recorder) body() []byte { return r.text[r.head:] }

// Flush implements http.Flusher.
func (r *recorder) Flush() { r.FlushError() } //nolint:errcheck // http.Flusher has no error

// FlushError is what http.ResponseController calls.
func (r *recorder) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.pass(streamed)
	return http.NewResponseController(r.under).Flush()
}

// pass sends the response so far, and from then on everything at once. A client that has gone ends
// nothing: the handler sees the errors of its own writes only.
func (r *recorder) pass(why string) {
	if r.lacks != "" {
		return
	}
	r.lacks = why
	r.restore()
	r.under.WriteHeader(r.status)
	if body := r.body(); len(body) > 0 {
		r.under.Write(body) //nolint:errcheck // as above
	}
	r.text, r.head = nil, 0
}

// restore sets the headers back to what they were when the handler has said the status.
func (r *recorder) restore() {
	h := r.under.Header()
	clear(h)
	for _, f := range r.header {
		h[f.name] = f.values
	}
}

// response returns the response as it is kept, after the handler returned.
func (r *recorder) response() []byte {
	if late := r.trailers(); r.lacks == "" && late != nil {
		r.header = append(r.header, late...) // package net/http has to know of trailers when the status is sent
		r.pass(streamed)
	}
	if r.lacks == "" {
		if r.begin(0); len(r.text) <= maxKept {
			return r.text
		}
		r.pass(tooLarge)
	}
	return appendHead(nil, r.status, r.lacks, nil, nil)
}

// finish sends the response, if it was held back.
func (r *recorder) finish() {
	if r.lacks != "" {
		return
	}
	r.restore()
	body := r.body()
	if h := r.under.Header(); bodyAllowed(r.status) && h["Content-Length"] == nil {
		r.length[0] = strconv.Itoa(len(body))
		h["Content-Length"] = r.length[:]
	}
	send(r.under, r.status, body)
}

// send replies with the whole of a body.
func send(w http.ResponseWriter, status int, body []byte) {
	w.WriteHeader(status)
	if len(body) > 0 {
		w.Write(body) //nolint:errcheck // the client has gone, and a repeat gets it
	}
}

// instead replies with a problem, if nothing was sent yet.
func (r *recorder) instead(m *middleware, p problem) {
	if r.lacks == "" {
		clear(r.under.Header())
		m.refuse(r.under, p)
	}
}
