package redlockengine

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/turn"
)

// mark is the memory of a node of the tokens of a name: the last token that was written there.
type mark struct {
	told    bool
	last    fence.Token
	version uint64
}

// markKey is where the tokens of a name are remembered. Two names may share
// that: then each skips the other's tokens.
func markKey(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	return fmt.Sprintf("redlock token %04x", h.Sum32()>>16^h.Sum32()&0xffff)
}

func (e *Engine) mark(ctx context.Context, i int, name string) (mark, error) {
	v, err := e.values[i].Get(ctx, markKey(name))
	if err != nil || v.Version == 0 {
		return mark{told: err == nil}, err
	}
	last, err := fence.ParseToken(string(v.Data))
	return mark{err == nil, last, v.Version}, engine.Unavailable("read token", err)
}

func highest(marks []mark) (most fence.Token) {
	for _, m := range marks {
		most = max(most, m.last)
	}
	return most
}

// recall reads what the nodes know of the tokens of a name.
func (s *session) recall(ctx context.Context, name string) ([]mark, error) {
	marks := make([]mark, len(s.nodes))
	errs := s.ask(ctx, s.joined(false), func(ctx context.Context, i int, _ engine.Session) (err error) {
		marks[i], err = s.engine.mark(ctx, i, name)
		return err
	})
	return marks, s.majority(ctx, "read token", count(errs, nil), errs)
}

// mintTries bounds how often a token is tried for that holders of names with the same hash take.
const mintTries = 10

// mint gives a claim its token: more than any that the nodes know where it stands. A node takes it
// only if nobody wrote there since it was read. So of two claims that read the same at most one
// finds a majority. The node's own token is the least, because a node may have lost its memory.
// Marks that were read already, or nil, are tried first.
func (s *session) mint(ctx context.Context, name string, votes []fence.Token, marks []mark) (token fence.Token, err error) {
	token = slices.Max(votes)
	for range mintTries {
		if marks == nil {
			if marks, err = s.recall(ctx, name); err != nil {
				return 0, err
			}
		}
		token = max(token, highest(marks)+1)
		errs := s.engine.each(ctx, s.bound(), func(ctx context.Context, i int) error {
			if votes[i] == 0 || !marks[i].told {
				return errSkipped
			}
			_, err := s.engine.values[i].Put(ctx, markKey(name), []byte(token.String()), marks[i].version)
			return err
		})
		err := s.majority(ctx, "write token", count(errs, nil), errs)
		if err == nil || count(errs, engine.ErrConflict) == 0 {
			return token, err
		}
		if err := turn.Pause(ctx, rand.N(s.timeout/16+1)); err != nil {
			return 0, err
		}
		marks = nil
	}
	return 0, engine.Unavailable("write token", errors.New("others took tokens at the same time"))
}
