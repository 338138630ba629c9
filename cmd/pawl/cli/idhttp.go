package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// mostServed is how many IDs a request may ask for.
const mostServed = 10_000

func (s *idService) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /id/{name...}", s.serveIDs)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	return mux
}

var texts = sync.Pool{New: func() any { return new([]byte) }}

// The values of headers. net/http only reads them.
var (
	plainText = []string{"text/plain; charset=utf-8"}
	jsonText  = []string{"application/json"}
	noStore   = []string{"no-store"}
)

// serveIDs makes IDs. No cache may keep the answer, because an ID is given once.
func (s *idService) serveIDs(w http.ResponseWriter, r *http.Request) {
	row := s.rows[r.PathValue("name")]
	n, err := wanted(r)
	switch {
	case r.Method != http.MethodGet: // HEAD would use up IDs that nobody sees
		w.Header().Set("Allow", http.MethodGet)
		answer(w, http.StatusMethodNotAllowed, "GET is allowed")
		return
	case row == nil:
		answer(w, http.StatusNotFound, fmt.Sprintf("no such name: allowed are %q", s.names))
		return
	case err != nil:
		answer(w, http.StatusBadRequest, err.Error())
		return
	}
	row.requests.Add(1)
	pooled := texts.Get().(*[]byte)
	defer texts.Put(pooled)
	ctx, cancel := context.WithTimeoutCause(r.Context(), serveWithin, errServeLate)
	defer cancel()
	text, _, err := row.from(ctx, (*pooled)[:0], n)
	*pooled = text
	if err != nil {
		row.refused.Add(1)
		w.Header().Set("Retry-After", "1")
		answer(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	row.ids.Add(int64(n))
	h := w.Header()
	h["Content-Type"] = plainText
	if wantsJSON(r.Header["Accept"]) {
		h["Content-Type"], text = jsonText, asJSON(text)
	}
	h["Cache-Control"] = noStore
	w.Write(text) //nolint:errcheck // the client has gone
}

// wanted reads how many IDs the request asks for.
func wanted(r *http.Request) (int, error) {
	if r.URL.RawQuery == "" {
		return 1, nil
	}
	text, is := strings.CutPrefix(r.URL.RawQuery, "n=")
	if !is || strings.ContainsAny(text, "&;") {
		return 0, errors.New("the parameters are not understood: n is allowed, once, as ?n=100")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostServed {
		return 0, fmt.Errorf("n is %.20q: 1 to %d are allowed", text, mostServed)
	}
	return n, nil
}

// refusedForm is the weight 0, by which a client refuses a form (RFC 9110, 12.4.2).
var refusedForm = regexp.MustCompile(`;\s*[qQ]\s*=\s*0(\.0*)?\s*(;|$)`)

// wantsJSON reports whether JSON is the first form in Accept that the service has.
func wantsJSON(accept []string) bool {
	for form := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		if refusedForm.MatchString(form) {
			continue
		}
		form, _, _ = strings.Cut(form, ";")
		switch strings.ToLower(strings.TrimSpace(form)) {
		case "application/json", "application/*":
			return true
		case "text/plain", "text/*", "*/*":
			return false
		}
	}
	return false
}

// asJSON makes an object of lines. IDs are strings, because numbers above 2^53 are not exact in JavaScript.
func asJSON(text []byte) []byte {
	var view struct {
		IDs []string `json:"ids"`
	}
	for line := range bytes.Lines(text) {
		view.IDs = append(view.IDs, string(line[:len(line)-1]))
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.Encode(view) //nolint:errcheck // strings can be encoded
	return b.Bytes()
}

// serveReady makes an ID of each name.
func (s *idService) serveReady(w http.ResponseWriter, r *http.Request) {
	if s.ending.Load() {
		answer(w, http.StatusServiceUnavailable, "the service ends")
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), readyWithin, errReadyLate)
	defer cancel()
	for _, name := range s.names {
		if _, _, err := s.rows[name].from(ctx, nil, 1); err != nil {
			answer(w, http.StatusServiceUnavailable, fmt.Sprintf("%q: %v", name, err))
			return
		}
	}
	answer(w, http.StatusOK, "ready")
}

// labels escapes the value of a label.
var labels = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// serveMetrics writes counters in the text format of Prometheus.
func (s *idService) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	for _, counter := range []struct {
		name, help string
		of         func(*idRow) int64
	}{
		{"pawl_ids_total", "IDs that were given out.", func(r *idRow) int64 { return r.ids.Load() }},
		{"pawl_id_requests_total", "Requests for IDs.", func(r *idRow) int64 { return r.requests.Load() }},
		{"pawl_id_failures_total", "Requests for IDs that failed.", func(r *idRow) int64 { return r.refused.Load() }},
	} {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s counter\n", counter.name, counter.help, counter.name)
		for _, name := range s.names {
			fmt.Fprintf(&b, "%s{kind=\"%s\",name=\"%s\"} %d\n", counter.name, s.kind, labels.Replace(name), counter.of(s.rows[name]))
		}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(b.Bytes()) //nolint:errcheck // the client has gone
}

// answer answers with a line.
func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	fmt.Fprintln(w, printable(strings.ReplaceAll(text, "\n", "; ")))
}
