package httpidem_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/httpidem"
)

// TestTrailersWithoutDeclaration: a handler that sets trailers by http.TrailerPrefix may do so before the body or after it.
// The client gets the trailers, as it does without the middleware. The response counts as streamed.
func TestTrailersWithoutDeclaration(t *testing.T) {
	each(t, func(t *testing.T, eng engine.Engine) {
		for i, before := range []bool{true, false} {
			s := newSite(t, eng, nil, func(w http.ResponseWriter, r *http.Request) {
				if before {
					w.Header().Set(http.TrailerPrefix+"Sum", "7")
				}
				paid(w, r)
				if !before {
					w.Header().Set(http.TrailerPrefix+"Sum", "7")
				}
			})
			k := key(fmt.Sprintf(`"%d"`, i))
			a := s.send(k)
			if a.text != "paid" || a.Trailer.Get("Sum") != "7" {
				t.Errorf("set before the body: %v: %q with trailers %v", before, a.text, a.Trailer)
			}
			s.wantProblem(s.send(k), http.StatusGone)
		}
	})
}

// TestNoContentType: a handler that wants no Content-Type gets none, in the replay as well.
func TestNoContentType(t *testing.T) {
	each(t, func(t *testing.T, eng engine.Engine) {
		s := newSite(t, eng, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = nil
			paid(w, r)
		})
		for _, replayed := range []string{"", "true"} {
			a := s.send(key(`"a"`))
			if kind, has := a.Header["Content-Type"]; has || a.text != "paid" || a.Header.Get(httpidem.ReplayedHeader) != replayed {
				t.Errorf("replayed %q: %q with Content-Type %q", replayed, a.text, kind)
			}
		}
	})
}

// TestNothingIsSaidOfEarlierRequests: the store has lost a part of a response. The request was carried out, so no reply may
// tell the client that nothing was done: the client would use a new key.
func TestNothingIsSaidOfEarlierRequests(t *testing.T) {
	each(t, func(t *testing.T, eng engine.Engine) {
		s := newSite(t, eng, nil, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, strings.Repeat("0123456789", 10_000)) //nolint:errcheck // the client reads it
		})
		s.send(key(`"a"`))
		s.losePart(eng)
		a := s.send(key(`"a"`))
		s.wantProblem(a, http.StatusInternalServerError)
		if strings.Contains(a.text, "Nothing was done") || !strings.Contains(a.text, "earlier request") {
			t.Error(a.text)
		}
		if s.runs.Load() != 1 {
			t.Errorf("the handler ran %d times", s.runs.Load())
		}
	})
}

// losePart removes one part of a result from the store.
func (s *site) losePart(eng engine.Engine) {
	values := eng.(engine.Values)
	for name, err := range values.ListValues(s.Context(), "pawl:idem/part/") {
		if err != nil {
			s.Fatal(err)
		}
		if name == "" { // the store still searches
			continue
		}
		is, err := values.Get(s.Context(), name)
		if err == nil {
			_, err = values.Put(s.Context(), name, nil, is.Version)
		}
		if err != nil {
			s.Fatal(err)
		}
		return
	}
	s.Fatal("the response has no parts")
}

// TestTransportRefusesItsSettings: a setting out of range is an error that names the field, before anything is sent.
func TestTransportRefusesItsSettings(t *testing.T) {
	for field, transport := range map[string]*httpidem.Transport{
		"Attempts": {Attempts: -1}, "Pause": {Pause: -time.Minute}, "MaxPause": {MaxPause: -time.Minute}, "Pause ": {Pause: time.Minute, MaxPause: time.Second},
	} {
		sent := 0
		transport.Base = roundTrip(func(*http.Request) (*http.Response, error) { sent++; return nil, io.EOF })
		r, err := http.NewRequestWithContext(httpidem.WithKey(context.Background(), idem.NewToken()), http.MethodPost, "http://127.0.0.1:1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = transport.RoundTrip(r); sent != 0 || err == nil || !strings.Contains(err.Error(), "Transport."+strings.TrimSpace(field)) {
			t.Errorf("%s: %v after %d requests", field, err, sent)
		}
	}
}
