package natsjs

import (
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/inbox"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// published makes a stream of one message, and returns its name.
func published(t *testing.T) string {
	t.Helper()
	name, js := rand.Text(), dial(t, testservers.SharedNATS(t).Addr)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), name, []byte("x"), jetstream.WithMsgID("1")); err != nil {
		t.Fatal(err)
	}
	return name
}

func dial(t *testing.T, addr string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// open reads a stream.
func open(t *testing.T, addr, stream string, hold time.Duration) inbox.Feed {
	t.Helper()
	source, err := New(dial(t, addr), stream, "g", &Options{Hold: hold, Block: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f, err := source.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// awaited waits for a delivery, over a network on which answers may come too late.
func awaited(t *testing.T, f inbox.Feed) inbox.Delivery {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if got, err := f.Receive(t.Context(), 1); len(got) == 1 {
			return got[0]
		} else if err != nil && !errors.Is(err, errSlow) && !strings.Contains(err.Error(), "timeout") {
			t.Fatal(err)
		}
	}
	t.Fatal("no delivery")
	return nil
}

// wantTaken makes a dead letter of a delivery that another process may have.
func wantTaken(t *testing.T, stream string, d inbox.Delivery) {
	t.Helper()
	if err := d.Dead(t.Context(), "a reason"); !errors.Is(err, inbox.ErrTaken) {
		t.Errorf("%v, want that another process may have it", err)
	}
	dead, err := dial(t, testservers.SharedNATS(t).Addr).Stream(t.Context(), stream+"_dead")
	if err != nil || dead.CachedInfo().State.Msgs > 0 {
		t.Errorf("dead letters: %+v, %v", dead, err)
	}
}

// TestSleep: a machine slept for longer than AckWait. A process of that machine makes no dead letter of a message that the process had. An
// extension brings nothing back.
func TestSleep(t *testing.T) {
	stream := published(t)
	f := open(t, testservers.SharedNATS(t).Addr, stream, time.Hour)
	d := awaited(t, f)
	awake := timeOfDay
	defer func() { timeOfDay = awake }()
	timeOfDay = func() time.Time { return awake().Add(2 * time.Hour) }
	if err := f.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantTaken(t, stream, d)
}

// TestLateMessage: a message was on its way for most of its AckWait. Soon after its arrival another process has the message, and the first
// process makes no dead letter.
func TestLateMessage(t *testing.T) {
	stream := published(t)
	addr := testservers.SharedNATS(t).Addr
	network := proxy.New(t, addr)
	slow, other := open(t, network.Addr, stream, 2*time.Second), open(t, addr, stream, 2*time.Second)
	network.Delay(1600 * time.Millisecond) // in each direction
	defer network.Thaw()
	late := awaited(t, slow)
	awaited(t, other)
	network.Delay(0)
	wantTaken(t, stream, late)
}

// TestPatienceEnds: a pull had a late answer, and the network is well again. The next pull does not wait with patience: a message that comes late
// in such a wait would have little of its AckWait left.
func TestPatienceEnds(t *testing.T) {
	stream := published(t)
	f := open(t, testservers.SharedNATS(t).Addr, stream, time.Hour)
	awaited(t, f)
	f.(*feed).slow.Store(true)
	began := time.Now()
	if got, err := f.Receive(t.Context(), 1); len(got) > 0 || err != nil {
		t.Error(got, err)
	}
	if took := time.Since(began); took >= patience {
		t.Errorf("the pull took %v", took)
	}
}

// TestPatienceForALargeMessage: a message waits at the server, and may be large. A quick answer to a question does not show that the message comes soon.
func TestPatienceForALargeMessage(t *testing.T) {
	f := open(t, testservers.SharedNATS(t).Addr, published(t), time.Hour).(*feed)
	if f.slow.Store(true); !f.needsPatience(t.Context()) {
		t.Error("the pull would be given up early")
	}
	awaited(t, f)
	if f.needsPatience(t.Context()) {
		t.Error("an idle wait has patience")
	}
}
