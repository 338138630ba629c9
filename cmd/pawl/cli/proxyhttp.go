package cli

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/lb"
)

// proxyCounts are the figures of all requests.
type proxyCounts struct {
	inFlight atomic.Int64
	status   [6]atomic.Int64 // by hundreds; 0: the client left, or was cut, before the response began
	unserved atomic.Int64    // without any member
	repeats  atomic.Int64    // tries after the first
	buckets  []atomic.Int64  // of the time, one for each bound and one beyond
	took     atomic.Int64    // together, in nanoseconds
}

// bounds are those of the buckets.
var bounds = []time.Duration{time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second}

func (c *proxyCounts) init() { c.buckets = make([]atomic.Int64, len(bounds)+1) }

// ended counts a request that has ended.
func (c *proxyCounts) ended(is *exchange) {
	took := time.Since(is.began)
	c.status[min(is.status/100, 5)].Add(1)
	i, _ := slices.BinarySearch(bounds, took)
	c.buckets[i].Add(1)
	c.took.Add(int64(took))
}

// memberCounts are the tries of a member by their result.
type memberCounts struct{ tries [lb.Canceled + 1]atomic.Int64 }

var results = [lb.Canceled + 1]string{lb.Succeeded: "succeeded", lb.Failed: "failed", lb.Canceled: "canceled"}

func (s *proxyService) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	return mux
}

// serveReady asks no store, because the proxy serves without its store.
func (s *proxyService) serveReady(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.ending.Load():
		answer(w, http.StatusServiceUnavailable, "the proxy ends")
	case len(s.set.Nodes()) == 0:
		answer(w, http.StatusServiceUnavailable, fmt.Sprintf("group %q has no member", s.group))
	default:
		answer(w, http.StatusOK, "ready")
	}
}

// serveMetrics writes figures in the text format of Prometheus.
func (s *proxyService) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	of := fmt.Sprintf(`group="%s"`, labels.Replace(s.group))
	head := func(kind, metric, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", metric, help, metric, kind)
	}
	metric := func(kind, metric, help string, value any) {
		head(kind, metric, help)
		fmt.Fprintf(&b, "%s{%s} %v\n", metric, of, value)
	}
	nodes := s.set.Nodes()
	metric("gauge", "pawl_proxy_members", "Members that the proxy knows.", len(nodes))
	metric("gauge", "pawl_proxy_members_stale", "1 if they are those of an earlier time, because the store is away or has lost them.",
		map[bool]int{true: 1}[s.stale.Load()])
	metric("gauge", "pawl_proxy_in_flight", "Requests under way, with connections that were upgraded.", s.counts.inFlight.Load())
	metric("counter", "pawl_proxy_unserved_total", "Requests for which there was no member.", s.counts.unserved.Load())
	metric("counter", "pawl_proxy_repeats_total", "Tries after the first of a request.", s.counts.repeats.Load())
	if s.log != nil {
		metric("counter", "pawl_proxy_log_dropped_total", "Lines of the access log that could not be written, or that its reader was too slow for.", s.log.dropped.Load())
	}
	head("counter", "pawl_proxy_requests_total", "Requests by the status of the response; none is without a response.")
	for i := range s.counts.status {
		class := strconv.Itoa(i) + "xx"
		if i == 0 {
			class = "none"
		}
		fmt.Fprintf(&b, "pawl_proxy_requests_total{%s,status=\"%s\"} %d\n", of, class, s.counts.status[i].Load())
	}
	s.writeTimes(&b, of)
	head("gauge", "pawl_proxy_member_ejected", "1 if the member is out after failures.")
	for _, n := range nodes {
		fmt.Fprintf(&b, "pawl_proxy_member_ejected{%s,member=\"%s\"} %d\n", of, labels.Replace(n.ID), map[bool]int{true: 1}[n.Ejected])
	}
	head("counter", "pawl_proxy_tries_total", "Requests that were sent to a member, by their result.")
	s.mu.RLock()
	for _, id := range slices.Sorted(maps.Keys(s.members)) {
		for i, result := range results {
			fmt.Fprintf(&b, "pawl_proxy_tries_total{%s,member=\"%s\",result=\"%s\"} %d\n", of, labels.Replace(id), result, s.members[id].tries[i].Load())
		}
	}
	s.mu.RUnlock() // before the write: requests would wait for a slow reader
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(b.Bytes()) //nolint:errcheck // the client has gone
}

// writeTimes writes the histogram of the time from the request to the end of the response.
func (s *proxyService) writeTimes(b *bytes.Buffer, of string) {
	const name = "pawl_proxy_request_seconds"
	fmt.Fprintf(b, "# HELP %s The time of a request to the end of its response.\n# TYPE %s histogram\n", name, name)
	var n int64
	for i, bound := range bounds {
		n += s.counts.buckets[i].Load()
		fmt.Fprintf(b, "%s_bucket{%s,le=\"%v\"} %d\n", name, of, bound.Seconds(), n)
	}
	n += s.counts.buckets[len(bounds)].Load()
	fmt.Fprintf(b, "%s_bucket{%s,le=\"+Inf\"} %d\n%s_sum{%s} %v\n%s_count{%s} %d\n", name, of, n, name, of,
		time.Duration(s.counts.took.Load()).Seconds(), name, of, n)
}
