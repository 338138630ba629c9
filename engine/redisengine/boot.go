package redisengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// verb is a script that may give something out.
type verb int

const (
	enter verb = iota
	leave
	poll
	many
)

// letters are how a batch calls them.
const letters = "elpm"

// life is the client's knowledge of the database since it last forgot: its
// mark, and the scripts that give something out there.
//
// The text of these scripts has the mark in it. So a server knows them only if it was asked for the
// mark of this database in its own life. A restarted or promoted server knows none of them. A
// server that knows them from an earlier life does not have the mark among its keys, at which they
// look. A master that was a replica meanwhile may have both: see suspected and session.lua.
type life struct {
	mark    string
	key     string // lives in Redis as long as the mark is this one
	scripts [4]*script
}

func (e *Engine) newLife(mark string) *life {
	l := &life{mark: mark, key: e.prefix + "boot:" + mark}
	head := "-- " + mark + "\n"
	if e.cluster {
		head = strings.ReplaceAll(clusterLua, "--MEMBER--", memberLua)
	}
	together := strings.NewReplacer("--ENTER--", enterLua, "--LEAVE--", leaveLua, "--POLL--", pollLua).Replace(manyLua)
	for v, text := range [...]string{enter: enterLua, leave: leaveLua, poll: pollLua, many: together} {
		l.scripts[v] = e.script(head + text)
	}
	return l
}

// run runs a script that may give something out.
func (e *Engine) run(ctx context.Context, v verb, keys, args []string, wait int64) (result Reply) {
	if e.cluster { // where scripts see by themselves how old their node is
		return e.eval(ctx, e.life.Load().scripts[v], wait, keys, args...)
	}
	for range 4 {
		for e.suspected.Load() != e.cleared.Load() {
			if err := e.load(ctx); err != nil {
				return Reply{Err: err}
			}
		}
		now := e.life.Load()
		if keys[5] != now.key {
			keys = slices.Clone(keys) // keys that were sent are not changed
			keys[5] = now.key
		}
		result = e.evalAcked(ctx, now.scripts[v], keys, args, wait)
		if !result.says("NOSCRIPT") {
			break
		}
		e.suspected.Add(1)
	}
	return result
}

// load teaches a server the scripts that give something out, and renew. The server may have been restarted, so
// load first asks for its mark over the same connection. The server then knows the scripts in the
// life of that mark. Where the mark is another, the next command finds scripts that are not known.
//
// The server would learn the scripts also behind a look that failed, as a replica refuses it. So a look goes ahead alone.
func (e *Engine) load(ctx context.Context) error {
	seen := e.suspected.Load()
	if err := e.check(ctx); err != nil {
		return err
	}
	cmds := []Command{e.checking(e.belief(), "", 0, false)}
	for _, s := range append(e.life.Load().scripts[:], e.renew) {
		cmds = append(cmds, command("SCRIPT", "", "LOAD", s.text))
	}
	replies := e.client.Together(ctx, cmds)
	err := e.checked(replies[0])
	for _, r := range replies {
		err = cmp.Or(err, r.Err)
	}
	if err == nil {
		e.cleared.Store(seen) // a suspicion that came meanwhile stays
	}
	return err
}

// checking is the command that looks at the boot mark, and begins a session if one
// is named.
func (e *Engine) checking(belief time.Duration, session string, ttl time.Duration, isNew bool) Command {
	known := e.life.Load().mark
	if belief > 0 && e.graceTTL > 0 {
		belief = e.graceTTL
	}
	if e.belief() == 0 { // nobody here believes in anything from before
		known = ""
	}
	keys := []string{e.sessions, e.prefix + "boot", e.grace, e.prefix + "session:" + session, e.prefix + "beliefs"}
	return eval(sessionLua, keys, engine.Format(), rand.Text(), ms(belief), known, session, ms(ttl), ms(keep(ttl)), flag(isNew))
}

// checked learns the mark from the answer.
func (e *Engine) checked(result Reply) error {
	e.suspect(result)
	answer, err := result.list()
	if err != nil {
		return err
	}
	mark, _ := answer[1].(string)
	if answer[0] == int64(0) {
		return cmp.Or(engine.CheckFormat(mark), errUsed)
	}
	info, _ := answer[2].(string)
	if err := cmp.Or(unnoticed(info), evicts(info)); err != nil {
		return err
	}
	if now := e.life.Load(); mark != now.mark {
		e.life.CompareAndSwap(now, e.newLife(mark)) // or others have learnt it
	}
	return nil
}

// marked adds the keys that format.lua looks at.
func (e *Engine) marked(keys ...string) []string {
	if e.cluster {
		return keys
	}
	return append(keys, e.prefix+"boot", e.sessions)
}

// otherFormat is the refusal of a script that found clients of another format.
func otherFormat(reply []any) error {
	if len(reply) != 2 {
		return nil
	}
	format, _ := reply[1].(string)
	return engine.CheckFormat(format)
}

// errUsed says that a server has a mark, although the operator calls that server new.
var errUsed = fmt.Errorf("%w: the server has a mark: it is not new", engine.ErrUsed)

// suspect notes that the server is a replica.
func (e *Engine) suspect(r Reply) {
	if r.says("READONLY") {
		e.suspected.Add(1)
	}
}

var policy, old = regexp.MustCompile(`\nmaxmemory_policy:([\w-]+)`), regexp.MustCompile(`\nredis_version:([1-6]\.\S+)`)

// unnoticed is why a server is refused whose restarts go unnoticed, of which INFO tells. Before version 7 scripts come back
// with the data, and replicas get the scripts of their master.
func unnoticed(info string) error {
	if is := old.FindStringSubmatch(info); is != nil {
		return fmt.Errorf("%w: the server says that it is Redis %s: before version 7 its scripts outlive a restart, which then goes unnoticed", engine.ErrUnsupported, is[1])
	}
	if info != "" && !strings.Contains(info, "\nrun_id:") {
		return fmt.Errorf("%w: the server tells no run_id in INFO, by which a restart is noticed", engine.ErrUnsupported)
	}
	return nil
}

// evicts is why a server is refused that deletes keys by itself: it has a bound on its memory, of which INFO
// tells.
func evicts(info string) error {
	is := policy.FindStringSubmatch(info)
	if is == nil || is[1] == "noeviction" || strings.Contains(info, "\nmaxmemory:0\r") {
		return nil
	}
	return fmt.Errorf("%w: the server may delete locks when it is full, because its maxmemory-policy is %s: set noeviction",
		engine.ErrUnsupported, is[1])
}

// unchecked is failed for a look at the boot mark. A server that is refused has answered.
func unchecked(ctx context.Context, verb string, err error) error {
	if errors.Is(err, errUsed) || errors.Is(err, engine.ErrUnsupported) {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return failed(ctx, verb, err)
}

// check looks at the boot mark.
func (e *Engine) check(ctx context.Context) error {
	if e.cluster {
		return e.mark(ctx, 0)
	}
	return e.checked(e.client.Do(ctx, e.checking(e.belief(), "", 0, false)))
}

// Init marks a server that the caller knows to be new, so that it grants at once. A server without
// a mark may have forgotten grants, and grants nothing at first. Init fails with [engine.ErrUsed]
// when there is a mark. Init fails with [engine.ErrUnsupported] in a cluster, which has no boot mark,
// because each node goes by its own age.
func (e *Engine) Init(ctx context.Context) error {
	if e.cluster {
		return fmt.Errorf("init: %w: a cluster has no boot mark: a node grants when it is old enough", engine.ErrUnsupported)
	}
	return unchecked(ctx, "init", e.checked(e.client.Do(ctx, e.checking(0, "", 0, true))))
}
