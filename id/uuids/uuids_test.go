package uuids_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/uuids"
	"github.com/pawl-go/pawl/internal/idtest"
)

// Of many goroutines none gets one twice, and those of version 7 rise for each goroutine.
func TestUUIDs(t *testing.T) {
	for name, test := range map[string]struct {
		g       id.Generator[uuid.UUID]
		version uuid.Version
	}{"v4": {uuids.V4(), 4}, "v7": {uuids.V7(), 7}} {
		check := idtest.Checker[string]{Unordered: test.version == 4}
		var group sync.WaitGroup
		for range 8 {
			log := check.Log()
			group.Go(func() {
				dst := make([]uuid.UUID, 100)
				for range 200 {
					u, err := test.g.Next(t.Context())
					n, errN := test.g.NextN(t.Context(), dst)
					if err := errors.Join(err, errN); err != nil || n != len(dst) {
						t.Error(n, err)
					}
					for _, u := range append([]uuid.UUID{u}, dst...) {
						if u.Version() != test.version || u.Variant() != uuid.RFC4122 {
							t.Errorf("%v", u)
						}
						log.Add(u.String())
					}
				}
			})
		}
		group.Wait()
		if n, err := check.Check(); err != nil || n != 8*200*101 {
			t.Errorf("%s: %d: %v", name, n, err)
		}
	}
}

// Version 7 tells the time in its first 48 bits.
func TestTimeOfV7(t *testing.T) {
	before := time.Now()
	u, err := uuids.V7().Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sec, nsec := u.Time().UnixTime()
	if is := time.Unix(sec, nsec); is.Before(before.Add(-time.Second)) || is.After(time.Now().Add(time.Second)) {
		t.Errorf("%v says %v", u, is)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("no random bits") }

// Without random bits there is an error, and no UUID that is not random.
func TestWithoutRandomBits(t *testing.T) {
	uuid.SetRand(broken{})
	defer uuid.SetRand(nil)
	for _, g := range []id.Generator[uuid.UUID]{uuids.V4(), uuids.V7()} {
		if n, err := g.NextN(t.Context(), make([]uuid.UUID, 3)); n != 0 || err == nil {
			t.Error(n, err)
		}
	}
	uuid.SetRand(bytes.NewReader(make([]byte, 16))) // enough for one
	if n, err := uuids.V4().NextN(t.Context(), make([]uuid.UUID, 3)); n != 1 || err == nil {
		t.Error(n, err)
	}
}
