package id_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

var forgetting = &id.ValuesOptions{AllowForgetting: true}

// clientOf is one more process of a store, so to say.
func clientOf(t *testing.T, url string) *pawl.Client {
	t.Helper()
	eng, err := open.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	client, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: 3 * time.Second}) // for so long a new Redis gives no lock out
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(client.Close(context.Background()), eng.Close()); err != nil {
			t.Log(err) // its store may be dead
		}
	})
	return client
}

func registers(t *testing.T, client *pawl.Client, opts *id.ValuesOptions) id.Registers {
	t.Helper()
	r, err := id.Values(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestValues(t *testing.T) {
	for name, url := range map[string]func() string{
		"sqlite": func() string { return "sqlite:" + filepath.Join(t.TempDir(), "store.db") },
		"redis":  func() string { return "redis://" + testservers.SharedRedis(t).Addr },
		"etcd":   func() string { return "etcd://" + testservers.SharedEtcd(t).Addr },
	} {
		t.Run(name, func(t *testing.T) {
			var all []id.Registers
			for store := url(); len(all) < 3; {
				all = append(all, registers(t, clientOf(t, store), forgetting))
			}
			if err := idtest.Contract(t.Context(), "ids", all...); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("memory", func(t *testing.T) {
		clients := memoryClients(t, 3)
		if err := idtest.Contract(t.Context(), "ids", registers(t, clients[0], nil), registers(t, clients[1], nil), registers(t, clients[2], nil)); err != nil {
			t.Error(err)
		}
	})
}

func memoryClients(t *testing.T, n int) (all []*pawl.Client) {
	t.Helper()
	eng := memengine.New()
	for range n {
		c, err := pawl.New(t.Context(), eng, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(context.Background()) }) //nolint:errcheck // in memory
		all = append(all, c)
	}
	return all
}

// A store that may lose what it acknowledged is refused with the reason, and works for a
// caller who accepts that.
func TestValuesRefuseForgetting(t *testing.T) {
	for url, why := range map[string]string{
		"redis://" + testservers.SharedRedis(t).Addr:                                            "in a restart",
		testservers.PostgresURL(testservers.SharedPostgres(t).Addr):                             "a replica that takes over",
		testservers.PostgresURL(testservers.SharedPostgres(t).Addr) + "&mode=row&connections=4": "no versioned values",
		"mysql://root@" + testservers.SharedMariaDB(t).Addr + "/pawl?tls=off&mode=row":          "no versioned values",
	} {
		url = strings.ReplaceAll(url, "sslmode=disable", "tls=off")
		client := clientOf(t, url)
		if _, err := id.Values(client, nil); !errors.Is(err, pawl.ErrUnsupported) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", url, err)
		}
		if _, err := id.Values(client, forgetting); (err == nil) == strings.Contains(why, "values") {
			t.Errorf("%s, allowed to forget: %v", url, err)
		}
	}
}

// The checks of idtest find a counter wrong that writes without a version.
func TestNaiveCounterIsFoundWrong(t *testing.T) {
	url := "etcd://" + testservers.SharedEtcd(t).Addr
	var all []id.Counter
	for range 3 {
		all = append(all, idtest.NaiveCounter(registers(t, clientOf(t, url), nil).Mark("naive")))
	}
	if n, err := idtest.Count(t.Context(), 4, 25, all...); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("%d numbers: %v", n, err)
	}
}

// A text that another program wrote to the value is no number, and is neither used nor replaced.
func TestValuesOfOthers(t *testing.T) {
	client := memoryClients(t, 1)[0]
	r := registers(t, client, nil)
	for _, text := range []string{"", "x", "-1", "0", "9223372036854775808", "1.5"} {
		name := "of another" + text
		for _, key := range []string{"id/mark/", "id/counter/"} {
			if _, err := client.Value(key+name).Put(t.Context(), []byte(text), 0); err != nil {
				t.Fatal(err)
			}
		}
		_, loading := r.Mark(name).Load(t.Context())
		_, adding := r.Counter(name).Add(t.Context(), 1)
		for _, err := range []error{loading, adding} {
			if err == nil || !strings.Contains(err.Error(), "another program") {
				t.Errorf("%q: %v", text, err)
			}
		}
	}
}

// A killed store is an error, never a number; when it is back the numbers go on above all
// that were handed out.
func TestValuesOverKills(t *testing.T) {
	server := testservers.Etcd(t)
	counter := registers(t, clientOf(t, "etcd://"+server.Addr), nil).Counter("over kills")
	var check idtest.Checker[int64]
	log := check.Log()
	for range 3 {
		for range 20 {
			last, err := counter.Add(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			log.Add(last)
		}
		server.Kill()
		soon, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if last, err := counter.Add(soon, 1); !errors.Is(err, pawl.ErrUnavailable) {
			t.Errorf("without a store: %d, %v", last, err)
		}
		cancel()
		server.Restart()
		for again := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			last, err := counter.Add(t.Context(), 1)
			if err == nil {
				log.Add(last)
				break
			}
			if !errors.Is(err, pawl.ErrUnavailable) || time.Now().After(again) {
				t.Fatal(err)
			}
		}
	}
	if n, err := check.Check(); err != nil || n != 63 {
		t.Errorf("%d numbers: %v", n, err)
	}
}
