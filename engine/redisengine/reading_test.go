package redisengine

import (
	"regexp"
	"testing"

	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestReadingMakesNothing: a client that only looks at a server that nobody uses leaves it as it is.
func TestReadingMakesNothing(t *testing.T) {
	server := testservers.Redis(t)
	e, raw := onServer(t, server, 0), onServer(t, server, 0)
	changes := func() string {
		t.Helper()
		info, _ := does(t, raw, "INFO", "persistence").Value.(string)
		is := regexp.MustCompile(`rdb_changes_since_last_save:(\d+)`).FindStringSubmatch(info)
		if is == nil {
			t.Fatalf("no count of writes in %q", info)
		}
		return is[1]
	}
	before := changes()
	for name, err := range e.List(sessiontest.Soon(t), "") {
		if name != "" || err != nil { // an empty name tells that the server searches
			t.Errorf("%q, %v", name, err)
		}
	}
	for key, err := range e.ListValues(sessiontest.Soon(t), "") {
		if key != "" || err != nil {
			t.Errorf("value %q, %v", key, err)
		}
	}
	if r, err := e.Show(sessiontest.Soon(t), "x"); err != nil || len(r.Claims) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if v, err := e.Get(sessiontest.Soon(t), "x"); err != nil || v.Version != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if n, after := does(t, raw, "DBSIZE").Value, changes(); n != int64(0) || after != before {
		t.Errorf("%v keys; %s writes, before %s", n, after, before)
	}
	if v, err := e.Put(sessiontest.Soon(t), "x", []byte("x"), 0); err != nil || v == 0 || changes() == before { // so the count tells
		t.Errorf("put: %d, %v", v, err)
	}
}
