package httpidem

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// problem is a reply of the middleware itself: RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	again  bool   // the same request may succeed later
}

var (
	keyMissing  = problem{Status: http.StatusBadRequest, Title: "Idempotency-Key is missing", Detail: "This operation needs the header Idempotency-Key."}
	keyInvalid  = problem{Status: http.StatusBadRequest, Title: "Idempotency-Key is invalid"}
	noIdentity  = problem{Status: http.StatusForbidden, Title: "The caller is not known", Detail: "A key belongs to a caller, and the server cannot tell the caller of this request."}
	badBody     = problem{Status: http.StatusBadRequest, Title: "The body cannot be read"}
	largeBody   = problem{Status: http.StatusRequestEntityTooLarge, Title: "The body is too large"}
	keyReused   = problem{Status: http.StatusUnprocessableEntity, Title: "Idempotency-Key is already used", Detail: "The key was used for another request. Nothing was done. Use a new key."}
	inFlight    = problem{Status: http.StatusConflict, Title: "A request is outstanding for this Idempotency-Key", Detail: "Repeat the request later with the same key.", again: true}
	takenOver   = problem{Status: http.StatusConflict, Title: "Another server works on this Idempotency-Key", Detail: "Repeat the request later with the same key, to get the response of that server.", again: true}
	notKept     = problem{Status: http.StatusGone, Title: "The response was not kept"}
	unavailable = problem{Status: http.StatusServiceUnavailable, Title: "The store of keys does not answer", Detail: "This request did nothing. An earlier request with the key may have been carried out. Repeat the request later with the same key.", again: true}
	broken      = problem{Status: http.StatusInternalServerError, Title: "The store of keys cannot be used", Detail: "This request did nothing. An earlier request with the key may have been carried out."}
)

// because returns the problem with a detail.
func (p problem) because(detail string) problem {
	p.Detail = detail
	return p
}

// refuse replies with a problem.
func (m *middleware) refuse(w http.ResponseWriter, p problem) {
	h := w.Header()
	p.Type = "about:blank"
	if m.opts.Documentation != "" {
		p.Type = m.opts.Documentation
		h.Set("Link", "<"+m.opts.Documentation+`>; rel="describedby"`)
	}
	if p.again {
		h.Set("Retry-After", m.retryAfter)
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Language", "en")
	h.Set("Cache-Control", "no-store")
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // texts and a number have JSON
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	w.Write(body) //nolint:errcheck // the client has gone
}
