package open

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

func TestOpen_every_scheme(t *testing.T) {
	dir := t.TempDir()
	nats := testservers.SharedNATS(t).Addr
	redis, etcd, zk := testservers.SharedRedis(t).Addr, testservers.SharedEtcd(t).Addr, testservers.SharedZooKeeper(t).Addr
	for rawURL, name := range map[string]string{
		"memory:":                                  "memory",
		"sqlite:" + dir + "/a.db":                  "sqlite",
		"sqlite://" + dir + "/b.db":                "sqlite",
		"sqlite:" + dir + "/what%3F.db":            "sqlite",
		"redis://" + redis:                         "redis",
		"redis://" + redis + "/2?prefix=other:":    "redis",
		"etcd://" + etcd:                           "etcd",
		"etcd://127.0.0.1:1," + etcd + "?prefix=x": "etcd", // one of them is enough
		"zk://" + zk:                               "zk",
		"nats://" + nats:                           "nats",
		"nats://127.0.0.1:1," + nats + "?bucket=b": "nats",
		"zk://127.0.0.1:1," + zk + "/a/b?tick=1s":  "zk",
	} {
		eng, err := Again(func() (engine.Engine, error) { return Open(t.Context(), rawURL) })
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
			continue
		}
		if is := eng.Caps().Name; is != name {
			t.Errorf("%s: engine %s", rawURL, is)
		}
		if _, err := eng.(engine.Values).Get(t.Context(), "nothing"); err != nil {
			t.Errorf("%s: %v", rawURL, err)
		}
		if err := eng.Close(); err != nil { // TestMain sees a client that is not closed
			t.Errorf("%s: close: %v", rawURL, err)
		}
	}
	for _, file := range []string{"a.db", "b.db", "what?.db"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
}

func TestOpen_wrong_URL(t *testing.T) {
	for rawURL, says := range map[string]string{
		"":                             "it has no scheme: known are etcd, etcds, memory,",
		"s3cret":                       "it has no scheme",
		"//u:s3cret@h":                 "it has no scheme",
		"u@s3cret:x":                   "it has no scheme",
		"oracle://u:s3cret@h":          `unknown scheme "oracle": known are etcd, etcds,`,
		"memory:x":                     "nothing may follow",
		"memory:?a=b":                  `unknown parameter "a": none is allowed`,
		"sqlite:":                      "the path is missing",
		"sqlite://host/path":           "the path begins right after the colon",
		"sqlite:%zz":                   "its path cannot be read",
		"sqlite:a#b":                   "write %23",
		"redis:":                       "the host is missing",
		"redis://":                     "the host is missing",
		"redis://h:x":                  "a port is no number",
		"redis://u:s3cret@:1":          "a host is missing",
		"redis://u:s3cret@h:0":         "a port is not a number from 1 to 65535",
		"redis://u:s3cret@h/0/1":       `the database is not a number from 0`,
		"redis://u:s3cret@h/-1":        `the database is not a number from 0`,
		"redis://u:s3cret@h?a=s3cret":  `unknown parameter "a": allowed is prefix`,
		"redis://h?prefix=a&prefix=b":  `parameter "prefix" is given twice`,
		"etcd://h?prefix=":             `parameter "prefix" is empty`,
		"redis://h?wait=":              `parameter "wait" is empty`,
		"rediss://h?tls-cert=":         `parameter "tls-cert" is empty`,
		"etcd://:s3cret@h":             "it has a password and no user",
		"etcd://u:@h":                  "it has a user and no password",
		"zk://:s3cret@h":               "it has a password and no user",
		"memory://u:s3cret@":           "nothing may follow",
		"redis://h?wait=one":           "wait is the number of replicas",
		"redis://h?wait=-1":            "wait is the number of replicas",
		"redis://h?grace=15":           "grace is a duration",
		"redis+cluster://h/1":          "a cluster has no databases",
		"redis://h?a;b":                "its parameters cannot be read",
		"redis://u:s3cret@h#x":         "write %23",
		"redis://u:s3cret@::1":         "IPv6 addresses stand in []",
		"etcd://u:s3cret@h,:1":         "a host is missing",
		"etcd://u:s3cret@h,i:y,j:1":    "a host is wrong: a port is a number",
		"etcds://u:s3cret@h/path":      "it has a path",
		"zk://u:s3cret@h//path":        "a part without a name",
		"nats://u:s3cret@h/path":       "it has a path",
		"nats://u:s3cret@h?replicas=2": `replicas is "2": allowed are 1, 3 and 5`,
		"zk://u:s3cret@h?tick=1":       `the tick "1" is not a duration from 1ms to 1m`,
		"zk://u:s3cret@h?tls-ca=x":     "TLS, which is off without tls=on",
		"redis://u:/s3cret@h":          "percent-encoded",
		"redis://u:1?s3cret@h":         "percent-encoded",
		"redis://u:1#s3cret@h":         "percent-encoded",
		"redis://u:1@s3cret/@h":        "percent-encoded",
		"redis://u:s3cret%@h":          "percent-encoded",
		"redis://u:s3cret@h:x":         "percent-encoded",
	} {
		refuses(t, rawURL, ErrURL, says)
	}
}

func TestAddresses(t *testing.T) {
	for host, want := range map[string][]string{
		"h":             {"h:1234"},
		"h:5,i,1.2.3.4": {"h:5", "i:1234", "1.2.3.4:1234"},
		"[::1]":         {"[::1]:1234"},
		"[::1]:5,[::2]": {"[::1]:5", "[::2]:1234"},
	} {
		if got, err := addresses(&url.URL{Host: host}, "1234"); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", host, got, err)
		}
	}
}

func TestOpen_gives_up(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for _, scheme := range []string{"redis", "rediss", "etcd", "etcds", "zk"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			rawURL := scheme + "://u:s3cret@" + silent.Addr().String()
			gaveUp(t, t.Context(), rawURL, connectTimeout+time.Second)
			soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			gaveUp(t, soon, rawURL, time.Second)
			gaveUp(t, t.Context(), scheme+"://u:s3cret@127.0.0.1:1", time.Second)
		})
	}
}

func gaveUp(t *testing.T, ctx context.Context, rawURL string, within time.Duration) {
	t.Helper()
	missed := deadline(within)
	_, err := Open(ctx, rawURL)
	if missed() || !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("not within %v: %v", within, err)
	}
	if strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %q", err)
	}
}

// Again opens up to three times, because a busy machine may not answer within the time of a connection.
func Again[T any](open func() (T, error)) (opened T, err error) {
	opened, err = open()
	for tries := 1; errors.Is(err, engine.ErrUnavailable) && tries < 3; tries++ {
		opened, err = open()
	}
	return opened, err
}

// deadline begins now. The function missed reports whether the deadline is over, by a timer that is set beside the call. A busy machine is
// late for the timer as well.
func deadline(within time.Duration) (missed func() bool) {
	began := time.Now()
	late := make(chan time.Duration, 1)
	time.AfterFunc(within, func() { late <- time.Since(began) - within })
	return func() bool {
		took := time.Since(began)
		return took > within && took > within+5*<-late
	}
}
