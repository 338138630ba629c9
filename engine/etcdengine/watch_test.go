package etcdengine

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// watchers is how many watches a server has.
func watchers(t testing.TB, server *testservers.Server) int {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Get("http://" + server.Addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
		if n, ok := strings.CutPrefix(lines.Text(), "etcd_debugging_mvcc_watcher_total "); ok {
			count, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	t.Fatal("etcd does not tell its watchers")
	return 0
}

// signedTokens are arguments of a server whose tokens know which rights there
// were when they were given out.
func signedTokens(t *testing.T) []string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(kind string, content []byte) string {
		path := filepath.Join(dir, strings.ReplaceAll(kind, " ", "-"))
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return []string{"--auth-token", "jwt,sign-method=ES256,priv-key=" + file("EC PRIVATE KEY", private) + ",pub-key=" + file("PUBLIC KEY", public)}
}

// All that wait watch in one stream, which keeps the token that it began with. When that is too
// old, the stream lets no more watches in, as long as others keep it open. A waiter that comes
// then is not to ask all the time.
func TestTokenOfTheStreamIsOld(t *testing.T) {
	const password = "secret"
	server := testservers.EtcdUser(t, "app", password, "pawl/", signedTokens(t)...)
	as := func(user string) func(*clientv3.Config) {
		return func(c *clientv3.Config) { c.Username, c.Password = user, password }
	}
	client, trips := newClientOf(t, server.Addr, as("app"))
	s := sessiontest.Open(t, New(client, nil), time.Minute)
	wait := func(name string) (holder *engine.Claim, granted <-chan error) {
		holder, waits := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
		holder.Resource, waits.Resource = name, name
		sessiontest.Hold(t, s, holder)
		sessiontest.Wait(t, s, waits)
		got, soon := make(chan error, 1), sessiontest.Soon(t)
		go func() { // as the root package does
			_, err := s.Await(soon, waits)
			for errors.Is(err, engine.ErrUnavailable) {
				time.Sleep(10 * time.Millisecond)
				_, err = s.Await(soon, waits)
			}
			got <- err
		}()
		return holder, got
	}
	one, first := wait("one")
	sessiontest.Until(t, "the first watches", func() bool { return watchers(t, server) == 1 })
	root, _ := newClientOf(t, server.Addr, as("root"))
	if _, err := root.RoleAdd(ctx, "another"); err != nil {
		t.Fatal(err)
	}
	before := trips.Load()
	two, second := wait("two")
	sessiontest.Until(t, "the second watches", func() bool { return watchers(t, server) == 2 })
	if asked := trips.Load() - before; asked > 20 {
		t.Errorf("who was not let in asked %d times", asked)
	}
	for holder, granted := range map[*engine.Claim]<-chan error{one: first, two: second} {
		sessiontest.Leave(t, s, holder)
		if err := <-granted; err != nil {
			t.Error(err)
		}
	}
}

// The event comes while the connection is away, and is forgotten by the server
// before it is back.
func TestCompactedEvent(t *testing.T) {
	server := testservers.Etcd(t)
	link := proxy.New(t, server.Addr)
	client, trips := newClientOf(t, link.Addr)
	other, _ := newClientOf(t, server.Addr)
	e := New(other, nil)
	holds, waits := sessiontest.Open(t, e, time.Minute), sessiontest.Open(t, New(client, nil), time.Minute)
	held, waiting := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, holds, held)
	sessiontest.Wait(t, waits, waiting)
	before := trips.Load()
	got := sessiontest.Awaiting(t, waits, waiting)
	value := make(chan engine.Value, 1)
	go func() {
		v, err := New(client, nil).Watch(sessiontest.Soon(t), "x", 0)
		if err != nil {
			t.Error(err)
		}
		value <- v
	}()
	sessiontest.Until(t, "both watch, and have looked", func() bool { return watchers(t, server) == 2 && trips.Load() == before+2 })
	link.Cut()
	sessiontest.Leave(t, holds, held)
	version, err := e.Put(ctx, "x", []byte("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	last, err := e.Put(ctx, "y", []byte("y"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Compact(ctx, int64(last), clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	link.Heal()
	sessiontest.Granted(t, got)
	if v := <-value; v.Version != version {
		t.Errorf("watched %+v, want version %d", v, version)
	}
}
