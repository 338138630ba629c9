package natsengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/model"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

func dial(t *testing.T, addr string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(addr, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newEngine(t *testing.T, nc *nats.Conn, bucket string) *Engine {
	t.Helper()
	e, err := New(t.Context(), nc, &Options{Bucket: bucket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestAgainstQueue(t *testing.T) {
	e := newEngine(t, dial(t, testservers.SharedNATS(t).Addr), "model")
	if err := e.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	model.Run(t, e, &model.Options{Series: 10})
}

// Every key that pawl may use becomes a key of NATS, and comes back.
func TestKeys(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, key := range []string{"store", "c/order/42", "c/名", "v/a.b c*>", "c/=41", "v/" + string(all), "c/" + strings.Repeat("名", 170)} {
		is, err := decode(encode(key))
		if err != nil || is != key {
			t.Errorf("%q came back as %q, %v", key, is, err)
		}
		for _, c := range encode(key) {
			if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.", c) {
				t.Errorf("%q has %q", encode(key), c)
			}
		}
	}
	if encode("c/a.b") == encode("c/a/b") || encode("c/=2E") == encode("c/.") {
		t.Error("two names are one key")
	}
	if _, err := decode("c.=x"); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a key of others: %v", err)
	}
}

// A server that is killed again and again loses no confirmed write, and goes on with larger
// versions.
func TestKilledServerLosesNothing(t *testing.T) {
	server := testservers.NATS(t)
	e := newEngine(t, dial(t, server.Addr), "")
	last := uint64(0)
	for round := range 5 {
		var data []byte
		for i := range 50 {
			data = fmt.Appendf(nil, "%d/%d", round, i)
			version, err := e.Put(t.Context(), "v", data, last)
			if err != nil || version <= last {
				t.Fatalf("version %d after %d, %v", version, last, err)
			}
			last = version
		}
		server.Kill()
		server.Restart()
		if v, err := e.Get(t.Context(), "v"); err != nil || string(v.Data) != string(data) || v.Version != last {
			t.Fatalf("%q at %d, %v; want %q at %d", v.Data, v.Version, err, data, last)
		}
	}
}

// A restart is another life of the store. A new connection alone is not.
func TestLife(t *testing.T) {
	server := testservers.NATS(t)
	life := func(s *store) string {
		t.Helper()
		name, err := s.Life(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	a, b := newEngine(t, dial(t, server.Addr), "").store, newEngine(t, dial(t, server.Addr), "").store
	first := life(a)
	if is := life(b); is != first {
		t.Errorf("%q for one client, %q for another", first, is)
	}
	server.Restart()
	second := life(a)
	if second == first || life(b) != second {
		t.Errorf("%q before the restart, %q after it", first, second)
	}
	if err := a.js.DeleteStream(t.Context(), "KV_pawl"); err != nil {
		t.Fatal(err)
	}
	for _, err := a.Load(t.Context(), "store"); err != nil && life(a) == second; _, err = a.Load(t.Context(), "store") {
		time.Sleep(time.Millisecond)
	}
	if third := life(a); third == second {
		t.Errorf("%q, although the bucket is another", third)
	}
}

// Open, show, put, resize and evict refuse a bucket of another format, and the error names both. Get, List, ListValues
// and Watch read there without a look at the mark.
func TestOtherFormat(t *testing.T) {
	nc := dial(t, testservers.SharedNATS(t).Addr)
	if _, err := newEngine(t, nc, "format").store.Swap(t.Context(), "store", []byte(`{"format":"9"}`), 0); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, nc, "format")
	_, opening := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
	_, showing := e.Show(t.Context(), "job")
	_, putting := e.Put(t.Context(), "value", []byte("x"), 0)
	for verb, err := range map[string]error{
		"open": opening, "show": showing, "put": putting,
		"resize": e.Resize(t.Context(), "job", 2), "evict": e.Evict(t.Context(), "job", "claim"),
	} {
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "format 9 ") || !strings.Contains(err.Error(), "format "+engine.Format()+":") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// A client that only writes values marks the format again in a bucket that was lost and made anew.
func TestMarkAfterALoss(t *testing.T) {
	server := testservers.NATS(t)
	e := newEngine(t, dial(t, server.Addr), "")
	if _, err := e.Put(t.Context(), "v", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := os.RemoveAll(server.Dir + "/data"); err != nil {
		t.Fatal(err)
	}
	server.Restart()
	for {
		_, err := e.Put(t.Context(), "v", []byte("x"), 0)
		if err == nil {
			break
		}
		if !errors.Is(err, engine.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if item, err := e.store.Load(t.Context(), "store"); err != nil || item.Version == 0 {
		t.Errorf("the mark is %+v, %v", item, err)
	}
	if err := e.Init(t.Context()); err != nil {
		t.Errorf("a bucket that has values only is new to locks: %v", err)
	}
}

// A deleted key leaves nothing: neither its value nor a marker.
func TestDeletedKeysLeaveNothing(t *testing.T) {
	e := newEngine(t, dial(t, testservers.SharedNATS(t).Addr), "deleted")
	last := uint64(0)
	for range 3 {
		version, err := e.Put(t.Context(), "v", []byte("x"), 0)
		if err != nil || version <= last {
			t.Fatalf("version %d after %d, %v", version, last, err)
		}
		if _, err := e.Put(t.Context(), "v", nil, version-1); !errors.Is(err, engine.ErrConflict) {
			t.Errorf("deleted at another version: %v", err)
		}
		if _, err := e.Put(t.Context(), "v", nil, version); err != nil {
			t.Fatal(err)
		}
		last = version
	}
	b, err := e.store.bind(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := b.stream.Info(t.Context()); err != nil || info.State.Msgs != 1 {
		t.Errorf("%d messages are left, want the mark of the format, %v", info.State.Msgs, err)
	}
}

// A bucket that would not keep the promises is refused, and a reader makes no bucket.
func TestBuckets(t *testing.T) {
	nc := dial(t, testservers.SharedNATS(t).Addr)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]jetstream.KeyValueConfig{
		"deny_delete": {}, "a history": {History: 5}, "expire": {TTL: time.Minute},
	} {
		config.Bucket = strings.ReplaceAll("foreign "+name, " ", "-")
		if _, err := js.CreateKeyValue(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		if _, err := New(t.Context(), nc, &Options{Bucket: config.Bucket}); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(engine.Existing(t.Context()), nc, &Options{Bucket: "nobody"}); !errors.Is(err, engine.ErrNoStore) {
		t.Errorf("a reader of no bucket: %v", err)
	}
	for field, opts := range map[string]Options{"Bucket": {Bucket: "a.b"}, "Replicas": {Replicas: 2}} {
		if _, err := New(t.Context(), nc, &opts); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(t.Context(), nc, &Options{Bucket: "three", Replicas: 3}); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("replicas on one server: %v", err)
	}
}

// A full bucket refuses new claims with the server's words, and takes a release.
func TestFullBucket(t *testing.T) {
	nc := dial(t, testservers.SharedNATS(t).Addr)
	e := newEngine(t, nc, "full")
	if err := e.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	spec := engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}
	c := &engine.Claim{Spec: spec, Resource: "x", ID: "a", Owner: "a", Weight: spec.Capacity}
	if g, err := s.Enter(t.Context(), c, false); err != nil || !g.Held() {
		t.Fatal(g, err)
	}
	b, err := e.store.bind(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config := b.stream.CachedInfo().Config
	config.MaxBytes = 2000
	if _, err := e.store.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		if _, err = e.Put(t.Context(), fmt.Sprint(i), make([]byte, 100), 0); err != nil || i == 50 {
			break
		}
	}
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "maximum bytes") {
		t.Errorf("a full bucket: %v", err)
	}
	if err := s.Leave(context.WithoutCancel(t.Context()), "x", "a"); err != nil {
		t.Errorf("a release: %v", err)
	}
}
