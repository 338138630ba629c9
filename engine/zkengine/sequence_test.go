package zkengine

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/adler32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// setSequence lets the next sequential node of a folder have this number, by
// changing the snapshot of a server that is stopped.
func setSequence(t *testing.T, dir, folder string, next int32) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "data", "version-2", "snapshot.*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	newest := slices.MaxFunc(files, func(a, b string) int { // they end with a number in base 16
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	text, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	path := append(binary.BigEndian.AppendUint32(nil, uint32(len(folder))), folder...)
	at := bytes.Index(text, path)
	if at < 0 {
		t.Fatalf("%s is not in %s", folder, newest)
	}
	at += len(path)
	if n := int32(binary.BigEndian.Uint32(text[at:])); n > 0 { // its data
		at += int(n)
	}
	const aclAndTimes, version = 4 + 8 + 4*8, 4
	binary.BigEndian.PutUint32(text[at+aclAndTimes+version:], uint32(next))
	// Each part ends with its checksum, over all before it, and "/".
	const seal, digest = 8 + 4 + 1, 8 + 4 + 8
	for _, end := range []int{len(text) - seal - digest - seal, len(text) - seal} {
		binary.BigEndian.PutUint64(text[end:], uint64(adler32.Checksum(text[:end])))
	}
	if err := os.WriteFile(newest, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// sequences returns what the nodes of a folder are numbered by.
func sequences(t *testing.T, conn *zk.Conn, folder string) (ends []string) {
	t.Helper()
	var names []string
	sessiontest.Until(t, "the server answers", func() bool { // which was started anew
		var err error
		names, _, err = conn.Children(folder)
		return err == nil
	})
	for _, name := range names {
		ends = append(ends, name[strings.LastIndex(name, ".")+1:])
	}
	slices.Sort(ends)
	t.Logf("sequences %q", ends)
	return ends
}

// TestSequenceEnds: after 2³¹ nodes of one folder, order is by zxid. This server
// then gives the last number out for ever; others may go on with negative ones.
func TestSequenceEnds(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := New([]string{server.Addr}, &Options{Tick: tick})
	first := sessiontest.Whole(t, fair)
	folder, _ := e.folder(first.Resource)
	s, err := e.Open(sessiontest.Soon(t), engine.SessionOptions{TTL: time.Minute}) // makes the folders
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(sessiontest.Soon(t)); err != nil {
		t.Fatal(err)
	}
	conn := raw(t, server.Addr)
	if _, err := conn.Create(folder, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil { // as a container it would go
		t.Fatal(err)
	}
	e.Close()
	server.Stop()
	server.Restart() // writes a snapshot
	server.Stop()
	setSequence(t, server.Dir, folder, math.MaxInt32-2)
	server.Restart()

	e = newEngine(t, server.Addr)
	a, b := open(t, e, time.Minute), open(t, e, time.Minute)
	token := sessiontest.Hold(t, a, first)
	var waiting []*engine.Claim
	var got []<-chan sessiontest.Answer
	for i := range 6 {
		c := sessiontest.Whole(t, fair)
		sessiontest.Wait(t, []*session{a, b}[i%2], c)
		waiting = append(waiting, c)
		got = append(got, awaiting(t, []*session{a, b}[i%2], c))
	}
	if ends := sequences(t, conn, folder); ends[len(ends)-1] != "2147483647" || slices.Equal(slices.Compact(slices.Clone(ends)), ends) && ends[0][0] != '-' {
		t.Errorf("the sequence did not end: %q", ends)
	}
	sessiontest.Leave(t, a, first)
	for i, c := range waiting {
		g := sessiontest.Granted(t, got[i])
		if g.Token <= token {
			t.Errorf("waiter %d: token %v after %v", i, g.Token, token)
		}
		token = g.Token
		for j := i + 1; j < len(got); j++ {
			if len(got[j]) > 0 {
				t.Fatalf("waiter %d before %d", j, i)
			}
		}
		sessiontest.Leave(t, a, c)
	}
}
