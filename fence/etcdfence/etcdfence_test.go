package etcdfence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/etcdfence"
	"github.com/pawl-go/pawl/internal/fencetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

var tests atomic.Int64

// dial returns a client of the server at addr, and a prefix for names that no
// other test has.
func dial(t *testing.T, addr string) (*clientv3.Client, string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, fmt.Sprintf("test/%d/%d/", time.Now().UnixNano(), tests.Add(1))
}

func get(ctx context.Context, client *clientv3.Client, key string) (string, error) {
	reply, err := client.Get(ctx, key)
	if err != nil || len(reply.Kvs) == 0 {
		return "", err
	}
	return string(reply.Kvs[0].Value), nil
}

func TestContract(t *testing.T) {
	client, prefix := dial(t, testservers.SharedEtcd(t).Addr)
	for _, opts := range []*etcdfence.Options{nil, {Prefix: prefix + "marks/"}} {
		if err := fencetest.Contract(t.Context(), etcdfence.New(client, opts), prefix); err != nil {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

func race(t *testing.T, client *clientv3.Client, key string, write func(ctx context.Context, token fence.Token) error) {
	t.Helper()
	read := fencetest.Text(func(ctx context.Context) (string, error) { return get(ctx, client, key) })
	if err := fencetest.Race(t.Context(), fencetest.Resource{Write: write, Read: read}, 8, 100); err != nil {
		t.Error(err)
	}
}

func TestPutRace(t *testing.T) {
	client, prefix := dial(t, testservers.SharedEtcd(t).Addr)
	guard, key := etcdfence.New(client, nil), prefix+"it"
	race(t, client, key, func(ctx context.Context, token fence.Token) error {
		return guard.Put(ctx, key, token, token.String())
	})
}

// Several keys under one mark are always of one holder.
func TestDoRace(t *testing.T) {
	client, prefix := dial(t, testservers.SharedEtcd(t).Addr)
	guard, one, two := etcdfence.New(client, nil), prefix+"both/1", prefix+"both/2"
	race(t, client, one, func(ctx context.Context, token fence.Token) error {
		err := guard.Do(ctx, prefix+"both", token, clientv3.OpPut(one, token.String()), clientv3.OpPut(two, token.String()))
		if err != nil {
			return err
		}
		reply, err := client.Get(ctx, prefix+"both/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		if a, b := string(reply.Kvs[0].Value), string(reply.Kvs[1].Value); a != b {
			return fmt.Errorf("one key is of %s, the other of %s", a, b)
		}
		return nil
	})
}

// A stale token does nothing at all, and what the server refuses leaves no mark.
func TestDo(t *testing.T) {
	client, prefix := dial(t, testservers.SharedEtcd(t).Addr)
	guard, key := etcdfence.New(client, nil), prefix+"it"
	if err := guard.Put(t.Context(), key, 5, "new"); err != nil {
		t.Fatal(err)
	}
	if err := guard.Do(t.Context(), key, 4, clientv3.OpDelete(key)); !errors.Is(err, fence.ErrStale) {
		t.Error(err)
	}
	if text, err := get(t.Context(), client, key); err != nil || text != "new" {
		t.Error(text, err)
	}
	if err := guard.Do(t.Context(), key, 9, clientv3.OpPut(key, "a"), clientv3.OpPut(key, "b")); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a key written twice: %v", err)
	}
	if err := guard.Do(t.Context(), key, 6, clientv3.OpDelete(key)); err != nil {
		t.Error(err)
	}
	if text, err := get(t.Context(), client, key); err != nil || text != "" {
		t.Error(text, err)
	}
}

// The marks survive the server, and a server that is down refuses nobody.
func TestRestart(t *testing.T) {
	server := testservers.Etcd(t)
	client, prefix := dial(t, server.Addr)
	guard := etcdfence.New(client, nil)
	if err := guard.Put(t.Context(), prefix, 5, "new"); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := guard.Put(soon, prefix, 6, "newer"); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("from a server that is down: %v", err)
	}
	server.Restart()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := guard.Put(t.Context(), prefix, 4, "late")
		if errors.Is(err, fence.ErrStale) {
			return
		}
		if err == nil || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
