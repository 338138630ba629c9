package halfmsg

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/outbox"
)

// call is the body of a request and of its reply.
type call struct {
	ID       string           `json:"id,omitempty"`
	Messages []outbox.Message `json:"messages,omitempty"`
	Age      int64            `json:"age_seconds,omitempty"`
	Outcome  string           `json:"outcome,omitempty"`
	Error    string           `json:"error,omitempty"`
}

// statuses are the codes of HTTP that tell errors.
var statuses = map[int]error{
	http.StatusBadRequest: pawl.ErrInvalid, http.StatusNotFound: ErrUnknown, http.StatusGone: ErrTooOld,
	http.StatusConflict: ErrAborted, http.StatusPreconditionFailed: ErrSubmitted,
}

// Handler serves the coordinator to producers in other processes: POST of /prepare, /submit and /abort. Authorize
// returns the name of the producer that sends the request; after an error the reply is 403. A producer cannot decide
// about the half messages of another. See [Client].
func (c *Coordinator) Handler(authorize func(*http.Request) (producer string, err error)) http.Handler {
	mux := http.NewServeMux()
	for path, do := range map[string]func(ctx context.Context, producer string, in call) (call, error){
		"POST /prepare": func(ctx context.Context, producer string, in call) (call, error) {
			id, err := c.Prepare(ctx, producer, in.Messages...)
			return call{ID: id}, err
		},
		"POST /submit": c.owned(c.Submit),
		"POST /abort":  c.owned(c.Abort),
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			producer, err := authorize(r)
			serve(w, r, mostBytes+1<<20, err, func(in call) (call, error) { return do(r.Context(), producer, in) })
		})
	}
	return mux
}

// owned does what a producer asks for only if the half message is that producer's.
func (c *Coordinator) owned(do func(context.Context, string) error) func(context.Context, string, call) (call, error) {
	return func(ctx context.Context, producer string, in call) (call, error) {
		e, err := c.Status(ctx, in.ID)
		if err == nil && e.Producer != producer {
			err = ErrUnknown
		}
		if err != nil {
			return call{}, err
		}
		return call{}, do(ctx, in.ID)
	}
}

// Handler answers the coordinator's questions: a POST, see [AskHTTP]. After an error of authorize the reply is 403.
func (b *Barrier) Handler(db *sql.DB, authorize func(*http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "only POST is allowed", http.StatusMethodNotAllowed)
			return
		}
		serve(w, r, 4096, authorize(r), func(in call) (call, error) {
			outcome, err := b.Answer(r.Context(), db, in.ID, time.Duration(in.Age)*time.Second)
			return call{Outcome: outcome.String()}, err
		})
	})
}

// serve reads a bounded request and writes the reply.
func serve(w http.ResponseWriter, r *http.Request, most int64, denied error, do func(call) (call, error)) {
	if denied != nil {
		http.Error(w, "not allowed", http.StatusForbidden)
		return
	}
	var in, out call
	status := http.StatusOK
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, most)).Decode(&in)
	if err != nil {
		err = fmt.Errorf("%w: the body is no JSON of up to %d bytes", pawl.ErrInvalid, most)
	} else {
		out, err = do(in)
	}
	if err != nil {
		out, status = call{Error: "the server could not do it"}, http.StatusServiceUnavailable // whose text is not for others
		for code, is := range statuses {
			if errors.Is(err, is) {
				out.Error, status = err.Error(), code
			}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(out) //nolint:errcheck // the client repeats
}

// Client is a coordinator that a producer reaches by HTTP, see [Coordinator.Handler]. The producer's name is what the
// coordinator makes of its authorization. A Client follows no redirect, and is safe for concurrent use.
type Client struct {
	// URL is where the handler is, without a slash at the end.
	URL string
	// HTTP sends the requests. Nil is [http.DefaultClient].
	HTTP *http.Client
	// Authorize, when set, is called with each request, and puts a header into it.
	Authorize func(*http.Request) error
}

// Prepare does what [Coordinator.Prepare] does. The name of the producer is not sent.
func (c *Client) Prepare(ctx context.Context, _ string, messages ...outbox.Message) (id string, err error) {
	out, err := post(ctx, c.HTTP, c.URL+"/prepare", c.Authorize, call{Messages: messages})
	return out.ID, failed("prepare", err)
}

// Submit does what [Coordinator.Submit] does.
func (c *Client) Submit(ctx context.Context, id string) error {
	_, err := post(ctx, c.HTTP, c.URL+"/submit", c.Authorize, call{ID: id})
	return failed("submit", err)
}

// Abort does what [Coordinator.Abort] does.
func (c *Client) Abort(ctx context.Context, id string) error {
	_, err := post(ctx, c.HTTP, c.URL+"/abort", c.Authorize, call{ID: id})
	return failed("abort", err)
}

// AskHTTP returns an [Asker] that asks by HTTP. Urls has the URL of each producer's [Barrier.Handler] by name. Nil client is
// [http.DefaultClient]. Authorize, when set, is called with each request, and puts a header into it. A redirect is an error, because
// the coordinator sends requests to the addresses in urls only.
func AskHTTP(client *http.Client, urls map[string]string, authorize func(*http.Request) error) Asker {
	return func(ctx context.Context, producer, id string, age time.Duration) (Outcome, error) {
		at, ok := urls[producer]
		if !ok {
			return Open, fmt.Errorf("%w: no URL of producer %.80q is known", pawl.ErrInvalid, producer)
		}
		out, err := post(ctx, client, at, authorize, call{ID: id, Age: seconds(age)})
		if err != nil {
			return Open, err
		}
		for o := Open; o <= RolledBack; o++ {
			if out.Outcome == o.String() {
				return o, nil
			}
		}
		return Open, fmt.Errorf("the answer is %.80q", out.Outcome)
	}
}

// post sends a request. No error has the URL, which may have a secret.
func post(ctx context.Context, client *http.Client, at string, authorize func(*http.Request) error, in call) (out call, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at, bytes.NewReader(body))
	if err != nil {
		return out, fmt.Errorf("%w: bad URL", pawl.ErrInvalid)
	}
	request.Header.Set("Content-Type", "application/json")
	if authorize != nil {
		if err := authorize(request); err != nil {
			return out, err
		}
	}
	if client == nil {
		client = http.DefaultClient
	}
	direct := *client
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	reply, err := direct.Do(request)
	if err != nil {
		for wrapped := (*url.Error)(nil); errors.As(err, &wrapped); {
			err = wrapped.Err
		}
		return out, err
	}
	defer reply.Body.Close()
	err = json.NewDecoder(io.LimitReader(reply.Body, 1<<20)).Decode(&out)
	switch is := statuses[reply.StatusCode]; {
	case reply.StatusCode == http.StatusOK && err != nil:
		return call{}, fmt.Errorf("the reply is no JSON: %w", err)
	case reply.StatusCode == http.StatusOK:
		return out, nil
	case is != nil && err == nil && out.Error != "": // a reply of this package, and of no proxy
		return call{}, fmt.Errorf("%w: status %d: %.300s", is, reply.StatusCode, out.Error)
	}
	return call{}, fmt.Errorf("status %d", reply.StatusCode)
}
