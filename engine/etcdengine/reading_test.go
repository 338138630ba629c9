package etcdengine

import (
	"testing"

	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestReadingMakesNothing: a client that only looks at a store that nobody uses leaves it as it is. The
// revision of etcd grows with each write of a key.
func TestReadingMakesNothing(t *testing.T) {
	client, _ := newClientOf(t, testservers.Etcd(t).Addr)
	e := New(client, nil)
	revision := func() int64 {
		t.Helper()
		r, err := client.Get(sessiontest.Soon(t), "x")
		if err != nil {
			t.Fatal(err)
		}
		return r.Header.Revision
	}
	before := revision()
	for name, err := range e.List(sessiontest.Soon(t), "") {
		t.Errorf("%q, %v", name, err)
	}
	for key, err := range e.ListValues(sessiontest.Soon(t), "") {
		t.Errorf("value %q, %v", key, err)
	}
	if r, err := e.Show(sessiontest.Soon(t), "x"); err != nil || len(r.Claims) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if v, err := e.Get(sessiontest.Soon(t), "x"); err != nil || v.Version != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	leases, err := client.Leases(sessiontest.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if after := revision(); after != before || len(leases.Leases) > 0 {
		t.Errorf("revision %d, before %d; leases %v", after, before, leases.Leases)
	}
	if v, err := e.Put(sessiontest.Soon(t), "x", []byte("x"), 0); err != nil || v == 0 || revision() == before { // so the revision tells
		t.Errorf("put: %d, %v", v, err)
	}
}
