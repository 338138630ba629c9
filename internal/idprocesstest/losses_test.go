package idprocesstest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/internal/testservers"
)

// losses is all that may happen to the data of a Redis while it is used, a step at a time.
type losses struct {
	t        *testing.T
	server   *testservers.Server
	operator rueidis.Client
	steps    []func()
	n        int // steps so far
}

func newLosses(t *testing.T, server *testservers.Server) *losses {
	t.Helper()
	operator, err := (&task{Redis: server.Addr}).redis()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(operator.Close)
	l := &losses{t: t, server: server, operator: operator}
	dump := ""
	l.steps = []func(){
		server.Restart, // which kills it: it has no snapshot yet
		func() { l.do("FLUSHALL", "SYNC") },
		func() { l.do("SAVE") },
		server.Restart, // with a snapshot that is old
		func() { dump = l.do("DUMP", redisKey) },
		func() { l.do("RESTORE", redisKey, "0", dump, "REPLACE") },
		func() { l.do("DEL", redisKey) },
		func() {
			ends := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
			l.do("RESTORE", redisKey, ends, dump, "REPLACE", "ABSTTL")
		},
		func() { l.do("RENAME", redisKey, "other") },
		func() { l.do("RENAME", "other", redisKey) },
		func() { l.do("PEXPIRE", redisKey, "1") },
	}
	return l
}

// next takes the next step, when the key is there after the step before.
func (l *losses) next() {
	l.t.Helper()
	for deadline := time.Now().Add(time.Minute); l.do("EXISTS", redisKey) == "0"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatal("the key is not written again")
		}
	}
	l.steps[l.n%len(l.steps)]()
	l.n++
}

// do runs a command that must be well. The command is repeated on a connection that ended with a server before.
func (l *losses) do(words ...string) string {
	l.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		is := l.operator.Do(l.t.Context(), l.operator.B().Arbitrary(words...).Build())
		_, refused := rueidis.IsRedisErr(is.Error())
		if refused || is.Error() != nil && time.Now().After(deadline) {
			l.t.Fatal(strings.Join(words, " "), is.Error())
		}
		if is.Error() == nil {
			m, err := is.ToMessage()
			if err != nil {
				l.t.Fatal(err)
			}
			if n, err := m.ToInt64(); err == nil {
				return strconv.FormatInt(n, 10)
			}
			text, err := m.ToString()
			if err != nil {
				l.t.Fatal(err)
			}
			return text
		}
	}
}
