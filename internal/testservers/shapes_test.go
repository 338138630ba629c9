package testservers

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func TestRedisTLS(t *testing.T) {
	ca := NewCA(t)
	for _, clients := range []string{"no", "yes"} {
		s := RedisTLS(t, ca, "--tls-auth-clients", clients)
		ping := func(config *tls.Config) error {
			conn, err := tls.Dial("tcp", s.Addr, config)
			if err != nil {
				return err
			}
			return redisPong(redisAskOn(conn, "PING"))
		}
		if err := ping(ca.Client(ca.Issue("someone"))); err != nil {
			t.Error(err)
		}
		if err := ping(ca.Client()); (err == nil) != (clients == "no") {
			t.Errorf("without a certificate, asked for %s: %v", clients, err)
		}
		if err := ping(NewCA(t).Client()); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("of another authority: %v", err)
		}
		if reply, err := redisAsk(s.Addr, "PING"); err == nil {
			t.Errorf("without TLS: %q", reply)
		}
	}
}

func TestRedisUser(t *testing.T) {
	s := RedisUser(t, "app", "s3cret", "~mine:*", "+ping", "+get")
	if _, err := redisAsk(s.Addr, "GET mine:x"); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH") {
		t.Fatalf("without a password: %v", err)
	}
	if reply, err := redisAsk(s.Addr, "AUTH app s3cret"); err != nil || reply != "OK\n" {
		t.Fatal(reply, err)
	}
}

func TestRedisReplica(t *testing.T) {
	master := Redis(t)
	replica := RedisReplica(t, master.Addr)
	master.redis("SET k v")
	until(t, "it follows", func() error { return redisSays(replica.Addr, "GET k", "v") })
}

func TestRedisSentinels(t *testing.T) {
	s := RedisSentinels(t)
	observer := RedisObserver(t, s.Master.Addr)
	master := func(sentinel, name string) string {
		reply, err := redisAsk(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME "+name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(strings.TrimSpace(reply), "\n", ":")
	}
	if is := master(s.Addrs()[0], SentinelMaster); is != s.Master.Addr {
		t.Fatalf("master is %s, not %s", is, s.Master.Addr)
	}
	s.Master.redis("SET known 1")
	until(t, "it is replicated", func() error { return redisSays(s.Replica.Addr, "EXISTS known", "1") })
	s.CutReplica()
	s.Master.redis("SET unknown 1")
	s.Master.Kill()
	until(t, "the replica is master", func() error { return redisSays(s.Replica.Addr, "ROLE", "master") })
	want(t, s.Replica.Addr, "EXISTS known", ":1")
	want(t, s.Replica.Addr, "EXISTS unknown", ":0")
	until(t, "all know it", func() error {
		for _, addr := range s.Addrs() {
			if is := master(addr, SentinelMaster); is != s.Replica.Addr {
				return fmt.Errorf("master is %s", is)
			}
		}
		return nil
	})
	if is := master(observer.Addr, ObservedMaster); is != s.Master.Addr {
		t.Errorf("who observes only says %s", is)
	}
}

func TestRedisCluster(t *testing.T) {
	nodes := RedisCluster(t)
	moved := 0
	for _, s := range nodes {
		if _, err := redisAsk(s.Addr, "SET k v"); err != nil && strings.HasPrefix(err.Error(), "MOVED") {
			moved++
		} else if err != nil {
			t.Error(err)
		}
	}
	if moved != len(nodes)-1 {
		t.Errorf("%d of %d nodes do not have the key", moved, len(nodes))
	}
}

func TestEtcdTLS(t *testing.T) {
	ca := NewCA(t)
	s := EtcdTLS(t, ca, "--client-cert-auth", "--trusted-ca-file", ca.File)
	if err := etcdHealth("https://"+s.Addr, ca.Client(ca.Issue("someone"))); err != nil {
		t.Error(err)
	}
	if err := etcdHealth("https://"+s.Addr, ca.Client()); err == nil {
		t.Error("it takes clients without a certificate")
	}
	if err := etcdHealth("https://"+s.Addr, NewCA(t).Client()); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("of another authority: %v", err)
	}
	if reply, err := http.Get("http://" + s.Addr + "/health"); err == nil {
		reply.Body.Close()
		t.Error("it answers without TLS")
	}
}

func TestEtcdUser(t *testing.T) {
	s := EtcdUser(t, "app", "s3cret", "mine/")
	if _, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: "app", Password: "wrong", Logger: zap.NewNop()}); err == nil {
		t.Error("it takes any password")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: "app", Password: "s3cret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(t.Context(), "mine/x", "v"); err != nil {
		t.Error(err)
	}
	if _, err := client.Put(t.Context(), "other", "v"); err == nil {
		t.Error("it lets everybody write everywhere")
	}
}

func TestEtcdCluster(t *testing.T) {
	cluster := EtcdCluster(t)
	leader, others := EtcdLeader(t, cluster)
	etcdCall(t, leader.Addr, "put", `{"key":"aw==","value":"dg=="}`)
	leader.Kill()
	until(t, "the others go on", func() error { return etcdReady(others[0].Addr) })
	next, _ := EtcdLeader(t, others)
	if next == leader {
		t.Fatal("the dead one leads")
	}
	etcdCall(t, others[1].Addr, "put", `{"key":"aw==","value":"dw=="}`)
	leader.Restart()
	if got := etcdCall(t, leader.Addr, "range", `{"key":"aw=="}`); !strings.Contains(got, `"value":"dw=="`) {
		t.Errorf("it has not followed: %s", got)
	}
	next.Pause()
	began := time.Now()
	until(t, "the others go on", func() error { return etcdReady(leader.Addr) })
	t.Logf("a leader that is paused is followed after %v", time.Since(began))
	next.Resume()
}
