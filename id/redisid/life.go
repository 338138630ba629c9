package redisid

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

var (
	//go:embed lua/alive.lua
	aliveLua string
	//go:embed lua/add.lua
	addLua string
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/grant.lua
	grantLua string
	//go:embed lua/drop.lua
	dropLua string
	//go:embed lua/bare.lua
	bareLua string

	addScript   = rueidis.NewLuaScript(aliveLua + addLua)
	claimScript = rueidis.NewLuaScript(aliveLua + claimLua)
	grantScript = rueidis.NewLuaScript(aliveLua + grantLua)
	dropScript  = rueidis.NewLuaScript(aliveLua + dropLua)
	bareScript  = rueidis.NewLuaScript(bareLua)
)

// claimed is for how long a client may raise the mark before another client does it in
// its stead. The numbers of a client that comes later are a gap.
const claimed = 3 * time.Second

// answer is that of the script that counts.
type answer struct {
	given      bool
	last, left int64
	life       string
}

// add counts, if the key may be counted on.
func (c *Counter) add(ctx context.Context, n int64) (a answer, err error) {
	r, err := c.run(ctx, addScript, text(n))
	if err != nil || r.is != 1 {
		return answer{}, err
	}
	return answer{given: true, last: r.limit - r.left, left: r.left, life: r.life}, nil
}

// reply is what a script says, and what there is to say about it.
type reply struct {
	is, limit, left int64
	life            string
}

func (c *Counter) run(ctx context.Context, script *rueidis.Lua, args ...string) (r reply, err error) {
	all, err := script.Exec(ctx, c.client, []string{c.key}, args).ToArray()
	if err != nil {
		return reply{}, failed(ctx, err)
	}
	numbers := []*int64{&r.is, &r.limit, &r.left}
	for i, m := range all {
		if i < len(numbers) {
			*numbers[i], err = m.AsInt64() // also of text, as which Lua leaves what it would round
		} else {
			r.life, err = m.ToString()
		}
		if err != nil {
			return reply{}, fmt.Errorf("%w: the fields of the key: %w", pawl.ErrMismatch, err)
		}
	}
	return r, nil
}

// mend has the key begin anew, or go on, so that n numbers are left. WentBack is the life
// that a number showed to be an old one, if any. Only one call of a process mends at a time.
func (c *Counter) mend(ctx context.Context, n int64, wentBack string) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the mark: %w", pawl.Unavailable(ctx, ctx.Err()))
	}
	claim := rand.Text()
	for pause := time.Millisecond; ; pause = min(2*pause, 64*time.Millisecond) {
		r, err := c.run(ctx, claimScript, claim, text(claimed.Milliseconds()), text(n), wentBack)
		if err != nil || r.is == 0 {
			return err
		}
		if r.is == 1 {
			return c.begin(ctx, claim, n, r.limit)
		}
		select {
		case <-time.After(mathrand.N(pause)): // another client is at it
		case <-ctx.Done():
			return fmt.Errorf("wait for the client that raises the mark: %w", pawl.Unavailable(ctx, ctx.Err()))
		}
	}
}

func text(n int64) string { return strconv.FormatInt(n, 10) }

// begin raises the mark and gives the numbers below it to the key, if the claim still stands. A
// claim that another client took over is no error: that client does the same.
func (c *Counter) begin(ctx context.Context, claim string, n, limit int64) error {
	from, to, err := c.raise(ctx, n, max(limit, c.seen.Load()))
	if err != nil {
		last, stop := pawl.Linger(ctx)
		defer stop()
		last, cancel := context.WithTimeout(last, time.Second)
		defer cancel()
		dropScript.Exec(last, c.client, []string{c.key}, []string{claim}) // else the claim ends by itself
		return err
	}
	err = grantScript.Exec(ctx, c.client, []string{c.key}, []string{claim, text(from), text(to), text(to - from), rand.Text()}).Error()
	if err != nil {
		return failed(ctx, err)
	}
	return nil
}

// raise reserves at least n numbers above the mark and above least: from+1 to to. The numbers are
// this call's alone, because the mark was raised at the version that was read.
func (c *Counter) raise(ctx context.Context, n, least int64) (from, to int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, claimed)
	defer cancel()
	for {
		is, err := c.mark.Load(ctx)
		if err == nil {
			if from = max(is.Value, least); from > math.MaxInt64-n {
				return 0, 0, fmt.Errorf("%w: %d numbers after %d", id.ErrExhausted, n, from)
			}
			to = from + min(max(n, c.reserve()), math.MaxInt64-from)
			_, err = c.mark.Raise(ctx, to, is)
		}
		switch {
		case err == nil:
			return from, to, nil
		case ctx.Err() != nil:
			return 0, 0, fmt.Errorf("raise the mark: %w: %w", pawl.ErrUnavailable, err)
		case !errors.Is(err, pawl.ErrConflict):
			return 0, 0, fmt.Errorf("raise the mark: %w", err)
		}
	}
}
