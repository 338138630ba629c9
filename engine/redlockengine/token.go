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
)

// mark is what a node knows of the tokens of a name: the last one that was
// written there.
type mark struct {
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
	v, err := e.nodes[i].Get(ctx, markKey(name))
	if err != nil || v.Version == 0 {
		return mark{}, err
	}
	last, err := fence.ParseToken(string(v.Data))
	return mark{last, v.Version}, engine.Unavailable("read token", err)
}

func highest(marks []mark) (most fence.Token) {
	for _, m := range marks {
		most = max(most, m.last)
	}
	return most
}

// marks reads what nodes know of the tokens of a name. A node that does not
// tell has no say in the token.
func (s *session) marks(ctx context.Context, nodes []int, name string) ([]mark, []error) {
	marks := make([]mark, len(s.nodes))
	return marks, s.engine.each(ctx, s.timeout, nodes, func(ctx context.Context, i int) (err error) {
		marks[i], err = s.engine.mark(ctx, i, name)
		return err
	})
}

// mintTries bounds how often a token is tried for that others take, who hold
// names of the same hash.
const mintTries = 10

var errContended = errors.New("others took tokens at the same time")

// mint gives a claim its token: more than any that the nodes know where it
// stands. A node that takes it does so only if nobody wrote there since it was
// read, so of two claims that read the same at most one finds a majority. What
// a node minted itself is the least, for one that lost its memory.
func (s *session) mint(ctx context.Context, name string, votes []fence.Token, marks []mark, errs []error) (fence.Token, error) {
	token := slices.Max(votes)
	for try := 1; !s.engine.opts.NoTokens; try++ {
		var nodes []int
		for i, own := range votes {
			if own != 0 && errs[i] == nil {
				nodes, token = append(nodes, i), max(token, marks[i].last+1)
			}
		}
		if len(nodes) < s.engine.quorum {
			return 0, s.engine.unreached(ctx, "read token", failed(errs))
		}
		errs = s.engine.each(ctx, s.timeout, nodes, func(ctx context.Context, i int) error {
			_, err := s.engine.nodes[i].Put(ctx, markKey(name), []byte(token.String()), marks[i].version)
			return err
		})
		accepted, contended := 0, false
		for _, i := range nodes {
			if errs[i] == nil {
				accepted++
			}
			contended = contended || errors.Is(errs[i], engine.ErrBusy)
		}
		if accepted >= s.engine.quorum {
			break
		}
		if !contended || try == mintTries {
			return 0, s.engine.unreached(ctx, "write token", append(failed(errs), errContended))
		}
		if !sleep(ctx, s.life, rand.N(s.timeout/16+1)) {
			return 0, context.Cause(ctx)
		}
		marks, errs = s.marks(ctx, nodes, name)
	}
	return token, nil
}
