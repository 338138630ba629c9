package grpclb

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pawl-go/pawl/lb"
)

// TestLatency: the duration of a stream is no latency. That of another call is.
func TestLatency(t *testing.T) {
	for method, want := range map[string]time.Duration{
		"/grpc.health.v1.Health/Check": time.Second,
		"/grpc.health.v1.Health/Watch": 0,
		"/unknown.Service/Method":      time.Second,
		"":                             time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := config{Policy: policy(lb.PeakEWMA.String())}
			set, picks, err := c.open(nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := set.Update(lb.Node{ID: "a"}); err != nil {
				t.Fatal(err)
			}
			p := &picker{set: set, picks: picks, conns: map[string]*connected{"a": {}}}
			for _, code := range []codes.Code{codes.OK, codes.Canceled} {
				result, err := p.Pick(balancer.PickInfo{FullMethodName: method, Ctx: t.Context()})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				result.Done(balancer.DoneInfo{Err: status.Error(code, "the end"), BytesSent: true, BytesReceived: true})
				if is := set.Nodes()[0]; (is.Latency-want).Abs() > want/1_000_000 || is.InFlight != 0 {
					t.Errorf("%s, %v: %+v, want the latency %v", method, code, is, want)
				}
			}
		})
	}
}

// TestNoNode: where all nodes have just gone, a call waits for the next picker. Where all are ejected, the call fails.
func TestNoNode(t *testing.T) {
	c := config{Policy: policy(lb.RoundRobin.String()), EjectAfter: 1, Panic: -1}
	set, picks, err := c.open(nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &picker{set: set, picks: picks, conns: map[string]*connected{"a": {}}}
	if _, err := p.Pick(balancer.PickInfo{Ctx: t.Context()}); !errors.Is(err, balancer.ErrNoSubConnAvailable) {
		t.Errorf("without nodes: %v", err)
	}
	if err := set.Update(lb.Node{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	result, err := p.Pick(balancer.PickInfo{Ctx: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	result.Done(balancer.DoneInfo{Err: status.Error(codes.Unavailable, "broken")})
	if _, err := p.Pick(balancer.PickInfo{Ctx: t.Context()}); !errors.Is(err, lb.ErrNoNode) {
		t.Errorf("with an ejected node: %v", err)
	}
}
