package redisstock

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem/stock"
)

var (
	//go:embed lua/part.lua
	partLua string
	//go:embed lua/reserve.lua
	reserveLua string
	//go:embed lua/end.lua
	endLua string
	//go:embed lua/put.lua
	putLua string
	//go:embed lua/lend.lua
	lendLua string
	//go:embed lua/deposit.lua
	depositLua string
	//go:embed lua/refuse.lua
	refuseLua string
	//go:embed lua/settle.lua
	settleLua string
	//go:embed lua/unlock.lua
	unlockLua string

	reserveScript = rueidis.NewLuaScript(partLua + reserveLua)
	endScript     = rueidis.NewLuaScript(partLua + endLua)
	putScript     = rueidis.NewLuaScript(partLua + putLua)
	lendScript    = rueidis.NewLuaScript(partLua + lendLua)
	depositScript = rueidis.NewLuaScript(partLua + depositLua)
	refuseScript  = rueidis.NewLuaScript(partLua + refuseLua)
	settleScript  = rueidis.NewLuaScript(partLua + settleLua)
	unlockScript  = rueidis.NewLuaScript(unlockLua)
)

const (
	// locked is how long the lock of a sweep lasts, and others wait for a client that died in a
	// sweep. A client ends its sweep in half of the time; what it has moved stays moved.
	locked = 3 * time.Second
	// opened is for how long units may arrive after their loan began.
	opened = time.Minute
)

// run runs a script of a part, whose fourth key is given.
func (s *Stock) run(ctx context.Context, script *rueidis.Lua, part int, key string, args ...string) (rueidis.RedisMessage, error) {
	keys := []string{s.key(part, "n"), s.key(part, "due"), s.key(part, "held"), key}
	m, err := script.Exec(ctx, s.client, keys, append([]string{strconv.Itoa(s.parts)}, args...)).ToMessage()
	if err == nil {
		return m, nil
	}
	if _, refused := rueidis.IsRedisErr(err); refused && (strings.Contains(err.Error(), "PAWLPARTS") || strings.Contains(err.Error(), "WRONGTYPE")) {
		return m, fmt.Errorf("%w: %w", pawl.ErrMismatch, err)
	}
	return m, pawl.Unavailable(ctx, err)
}

// yes runs a script that returns whether something is so.
func (s *Stock) yes(ctx context.Context, script *rueidis.Lua, part int, key string, args ...string) (bool, error) {
	m, err := s.run(ctx, script, part, key, args...)
	if err != nil {
		return false, err
	}
	n, err := m.AsInt64()
	return n == 1, err
}

// part is what a part says of itself.
type part struct {
	lent, free, reserved, came int64
	put                        bool // units were put there, whenever that was
	more                       bool // reservations that have expired may still be there
	loans                      map[string]string
}

// lend lends units of a part to another, at most so many, or only looks.
func (s *Stock) lend(ctx context.Context, from, to int, loan string, most int64) (p part, err error) {
	m, err := s.run(ctx, lendScript, from, s.key(from, "lent"), loan, strconv.Itoa(to), text(most))
	if err != nil {
		return part{}, err
	}
	all, err := m.ToArray()
	if err != nil || len(all) != 7 {
		return part{}, errors.Join(fmt.Errorf("the script returned %d values", len(all)), err)
	}
	var put, more int64
	for i, n := range []*int64{&p.lent, &p.free, &p.reserved, &p.came, &put} {
		if *n, err = all[i].AsInt64(); err != nil {
			return part{}, err
		}
	}
	if more, err = all[6].AsInt64(); err != nil {
		return part{}, err
	}
	p.put, p.more = put == 1, more == 1
	p.loans, err = all[5].AsStrMap()
	return p, err
}

// look reads a part, and ends the loans that it finds there: the caller has the lock, so their clients
// are dead or late. Reservations that have expired are ended too, however many these are.
func (s *Stock) look(ctx context.Context, from int) (part, error) {
	for {
		p, err := s.lend(ctx, from, from, "", 0)
		if err != nil || len(p.loans) == 0 && !p.more {
			return p, err
		}
		for loan, is := range p.loans {
			if err := s.resolve(ctx, from, loan, is); err != nil {
				return part{}, err
			}
		}
	}
}

// resolve ends a loan of another client.
func (s *Stock) resolve(ctx context.Context, from int, loan, is string) error {
	number, _, _ := strings.Cut(is, " ")
	to, err := strconv.Atoi(number)
	if err != nil || to < 0 || to >= s.parts {
		return fmt.Errorf("%w: the loan %.40q", pawl.ErrMismatch, is)
	}
	arrived, err := s.yes(ctx, refuseScript, to, s.key(to, "loan:"+loan))
	if err != nil {
		return err
	}
	return s.settle(ctx, from, to, loan, arrived)
}

// settle is the end of a loan. The mark goes last: it must be there as long as the loan is.
func (s *Stock) settle(ctx context.Context, from, to int, loan string, arrived bool) error {
	back := "1"
	if arrived {
		back = "0"
	}
	if _, err := s.yes(ctx, settleScript, from, s.key(from, "lent"), loan, back); err != nil || !arrived {
		return err
	}
	return pawl.Unavailable(ctx, s.client.Do(ctx, s.client.B().Del().Key(s.key(to, "loan:"+loan)).Build()).Error())
}

// move moves units from one part to another, at most so many.
func (s *Stock) move(ctx context.Context, from, to int, most int64) (moved int64, err error) {
	loan := rand.Text()
	open := s.client.B().Set().Key(s.key(to, "loan:"+loan)).Value("open").PxMilliseconds(opened.Milliseconds()).Build()
	if err := s.client.Do(ctx, open).Error(); err != nil {
		return 0, pawl.Unavailable(ctx, err)
	}
	p, err := s.lend(ctx, from, to, loan, most)
	if err != nil || p.lent == 0 {
		return 0, err
	}
	ctx, stop := pawl.Linger(ctx) // or a later sweep ends the loan
	defer stop()
	arrived, err := s.yes(ctx, depositScript, to, s.key(to, "loan:"+loan), text(p.lent))
	if err != nil {
		return 0, err
	}
	if err := s.settle(ctx, from, to, loan, arrived); err != nil || !arrived {
		return 0, err
	}
	return p.lent, nil
}

// sweep reserves units for an id whose part has too few, with units of other parts.
func (s *Stock) sweep(ctx context.Context, id string, n int64) error {
	ctx, unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for {
		before, err := s.gather(ctx, id, n)
		if err != nil {
			return err
		}
		err = s.reserve(ctx, id, n)
		var few *tooFew
		if !errors.As(err, &few) {
			return err
		}
		after, err := s.looks(ctx)
		switch {
		case err != nil:
			return err
		case !nothingCame(before, after, s.home(id)) || after[s.home(id)].free >= n: // units were on their way
			continue
		case !anyPut(after):
			return stock.ErrNotFound
		}
		s.mu.Lock()
		s.sold = after
		s.mu.Unlock()
		return &stock.SoldOutError{Name: s.name, Wanted: n, Left: few.free}
	}
}

// gather moves units to the part of an id until that part has enough, and returns all parts as
// they were left.
func (s *Stock) gather(ctx context.Context, id string, n int64) ([]part, error) {
	all, err := s.looks(ctx)
	home := s.home(id)
	for i := 1; err == nil && i < s.parts; i++ {
		from := (home + i) % s.parts
		if all[home].free >= n || all[from].free == 0 {
			continue
		}
		var moved int64
		moved, err = s.move(ctx, from, home, max(n-all[home].free, all[from].free/2)) // half of it serves the next ids
		all[home].free += moved
		all[from].free -= moved
	}
	return all, err
}

// soldOut says so without a sweep if nothing has come to any part since a sweep of this process
// found fewer than n units. Else it returns a tooFew.
func (s *Stock) soldOut(ctx context.Context, n int64) error {
	s.mu.Lock()
	before := s.sold
	s.mu.Unlock()
	left := int64(0)
	for _, p := range before {
		left += p.free
	}
	if before == nil || left >= n {
		return &tooFew{}
	}
	after, err := s.each(func(i int) (part, error) { return s.lend(ctx, i, i, "", 0) })
	if err != nil {
		return err
	}
	for i := range after {
		if after[i].came != before[i].came || after[i].free > before[i].free || len(after[i].loans) > 0 {
			return &tooFew{}
		}
	}
	return &stock.SoldOutError{Name: s.name, Wanted: n, Left: left}
}

// nothingCame reports whether all parts but one were empty from the first look to the second.
// Then at the time between, all free units were in that one part.
func nothingCame(before, after []part, but int) bool {
	for i := range before {
		if i != but && (before[i].free > 0 || after[i].free > 0 || before[i].came != after[i].came) {
			return false
		}
	}
	return true
}

func anyPut(all []part) bool {
	for _, p := range all {
		if p.put {
			return true
		}
	}
	return false
}

// looks reads all parts under the lock.
func (s *Stock) looks(ctx context.Context) ([]part, error) {
	return s.each(func(i int) (part, error) { return s.look(ctx, i) })
}

// each reads all parts at once.
func (s *Stock) each(f func(i int) (part, error)) ([]part, error) {
	all, failed := make([]part, s.parts), make([]error, s.parts)
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() { all[i], failed[i] = f(i) })
	}
	group.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, err // one says enough
		}
	}
	return all, nil
}

// lock waits until no other client moves units, and bounds its ctx by the end of the lock. The
// lock keeps a sweep from missing units. How many units there are never rests on it.
func (s *Stock) lock(ctx context.Context) (during context.Context, unlock func(), err error) {
	key, holder := s.prefix+"{"+s.name+"}:sweep", rand.Text()
	for pause := time.Millisecond; ; pause = min(2*pause, 32*time.Millisecond) {
		during, cancel := context.WithTimeout(ctx, locked/2)
		err := s.client.Do(during, s.client.B().Set().Key(key).Value(holder).Nx().PxMilliseconds(locked.Milliseconds()).Build()).Error()
		if err == nil {
			return during, func() {
				cancel()
				last, stop := pawl.Linger(ctx)
				defer stop()
				ctx, cancel := context.WithTimeout(last, time.Second)
				defer cancel()
				unlockScript.Exec(ctx, s.client, []string{key}, []string{holder}) // or it ends by itself
			}, nil
		}
		cancel()
		if !rueidis.IsRedisNil(err) {
			return nil, nil, pawl.Unavailable(ctx, err)
		}
		select {
		case <-time.After(mathrand.N(pause)):
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("wait for the client that sweeps: %w", context.Cause(ctx))
		}
	}
}

// Totals are the units of a stock.
type Totals struct{ Free, Reserved int64 }

// Total returns how many units are free and reserved. Each part is read at its own time. Total
// waits for a sweep that is under way, and ends the loans of dead clients.
func (s *Stock) Total(ctx context.Context) (is Totals, err error) {
	all, err := s.locked(ctx, "total", nil)
	for _, p := range all {
		is.Free, is.Reserved = is.Free+p.free, is.Reserved+p.reserved
	}
	return is, err
}

// Rebalance spreads the free units evenly over the parts.
func (s *Stock) Rebalance(ctx context.Context) error {
	_, err := s.locked(ctx, "rebalance", s.level)
	return err
}

// locked looks at all parts under the lock, and hands them to f.
func (s *Stock) locked(ctx context.Context, doing string, f func(context.Context, []part) error) ([]part, error) {
	ctx, unlock, err := s.lock(ctx)
	if err == nil {
		defer unlock()
		var all []part
		all, err = s.looks(ctx)
		switch {
		case err == nil && !anyPut(all):
			err = stock.ErrNotFound
		case err == nil && f != nil:
			err = f(ctx, all)
		}
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("stock %q: %s: %w", s.name, doing, err)
}

// level moves units from parts that have more than an even share to parts that have less.
func (s *Stock) level(ctx context.Context, all []part) error {
	total := int64(0)
	for _, p := range all {
		total += p.free
	}
	share := func(i int) int64 {
		if int64(i) < total%int64(s.parts) {
			return total/int64(s.parts) + 1
		}
		return total / int64(s.parts)
	}
	to := 0
	for from := range all {
		for all[from].free > share(from) {
			for to < s.parts && all[to].free >= share(to) {
				to++
			}
			if to == s.parts {
				return nil // others have moved since
			}
			moved, err := s.move(ctx, from, to, min(all[from].free-share(from), share(to)-all[to].free))
			if err != nil {
				return err
			}
			if moved == 0 {
				break
			}
			all[from].free -= moved
			all[to].free += moved
		}
	}
	return nil
}
