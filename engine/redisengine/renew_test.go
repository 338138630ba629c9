package redisengine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// answering is a client whose server is a function.
type answering struct {
	cluster bool
	answer  func(ctx context.Context, cmd Command) Reply
	Client
}

func (a answering) Cluster() bool                             { return a.cluster }
func (a answering) Do(ctx context.Context, cmd Command) Reply { return a.answer(ctx, cmd) }
func (a answering) Pipeline(ctx context.Context, cmds []Command) []Reply {
	return a.Together(ctx, cmds)
}
func (a answering) Together(ctx context.Context, cmds []Command) []Reply {
	replies := make([]Reply, len(cmds))
	for i, cmd := range cmds {
		replies[i] = a.answer(ctx, cmd)
	}
	return replies
}

// sessionOn is a session that was never opened, because its server is a function.
func sessionOn(client answering, opts *Options, ttl time.Duration) *session {
	s := &session{engine: NewOn(client, opts), id: "s", key: "pawl:session:s", opts: engine.SessionOptions{TTL: ttl}, keep: "1"}
	s.members.byName, s.known.names = make(map[string]*member), make(map[string]time.Time)
	return s
}

// TestRenewalOfManyLives: where each renewal meets another life, nothing was renewed, and the
// caller learns that.
func TestRenewalOfManyLives(t *testing.T) {
	lives := 0
	for _, refusal := range []Reply{{Value: []any{int64(-4)}}, {Err: errors.New("NOSCRIPT No matching script")}} {
		var s *session
		s = sessionOn(answering{answer: func(_ context.Context, cmd Command) Reply {
			switch {
			case cmd.Head[0] == "EVALSHA" && cmd.Head[1] == s.engine.renew.sha:
				return refusal
			case cmd.Head[0] == "EVAL":
				lives++
				return Reply{Value: []any{int64(1), fmt.Sprint("mark", lives/2), ""}}
			default:
				return Reply{Value: "OK"}
			}
		}}, nil, time.Minute)
		if gone, err := s.Renew(t.Context(), nil); !errors.Is(err, engine.ErrUnavailable) || gone != nil {
			t.Errorf("%+v: gone %v, error %v", refusal, gone, err)
		}
	}
}

// TestStuckWithoutAnswer: the owner of the client is told of a renewal that had no answer in its time,
// and of no other failure.
func TestStuckWithoutAnswer(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		calls := 0
		s := sessionOn(answering{cluster: cluster, answer: func(ctx context.Context, _ Command) Reply {
			return Reply{Err: errors.Join(errors.New("broken"), context.Cause(ctx))}
		}}, &Options{Stuck: func() { calls++ }}, time.Minute)
		if _, err := s.Renew(t.Context(), nil); !errors.Is(err, engine.ErrUnavailable) || calls != 0 {
			t.Errorf("cluster %t: broken: %v, %d calls", cluster, err, calls)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		if _, err := s.Renew(ctx, nil); !errors.Is(err, context.DeadlineExceeded) || calls != 1 {
			t.Errorf("cluster %t: no answer: %v, %d calls", cluster, err, calls)
		}
	}
}
