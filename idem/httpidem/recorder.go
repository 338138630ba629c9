package httpidem

import (
	"bytes"
	"net/http"
)

// recorder is the http.ResponseWriter of a handler. It holds the response back until the handler returns, so that a client
// sees no response that is not kept. A response that is too large or streamed goes to the client at once, and is not kept.
type recorder struct {
	under  http.ResponseWriter
	opts   *Options
	status int // 0: the handler has not said it
	header http.Header
	body   bytes.Buffer
	lacks  string // why the response went to the client already
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
	r.status = status
	h := r.under.Header()
	r.header = h.Clone() // later changes are none of the response
	if h["Trailer"] != nil {
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
	case r.lacks == "" && len(data) > r.opts.MaxResponse-r.body.Len():
		r.pass(tooLarge)
	}
	if r.lacks != "" {
		return r.under.Write(data)
	}
	return r.body.Write(data)
}

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

// pass sends what was held back, and from then on everything at once. A client that has gone ends
// nothing: the handler sees the errors of its own writes only.
func (r *recorder) pass(why string) {
	if r.lacks != "" {
		return
	}
	r.lacks = why
	r.restore()
	r.under.WriteHeader(r.status)
	r.under.Write(r.body.Bytes()) //nolint:errcheck // as above
	r.body = bytes.Buffer{}
}

// restore sets the headers back to what they were when the handler has said the status.
func (r *recorder) restore() {
	h := r.under.Header()
	clear(h)
	for name, values := range r.header {
		h[name] = values
	}
}

// response returns the response to keep, after the handler returned.
func (r *recorder) response() *response {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.lacks != "" {
		return &response{status: r.status, lacks: r.lacks}
	}
	return &response{status: r.status, headers: collect(r.header, r.opts.Headers), body: r.body.Bytes()}
}

// finish sends what was held back.
func (r *recorder) finish() {
	if r.lacks == "" {
		r.restore()
		send(r.under, r.status, r.body.Bytes())
	}
}

// instead replies with a problem, if nothing was sent yet.
func (r *recorder) instead(m *middleware, p problem) {
	if r.lacks == "" {
		clear(r.under.Header())
		m.refuse(r.under, p)
	}
}
