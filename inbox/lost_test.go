package inbox

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestOrderOfTwoLostDeliveries: a message comes again after a loss, and is lost once more much later. The key waits for that message both times.
func TestOrderOfTwoLostDeliveries(t *testing.T) {
	for name, early := range map[string]bool{"one after another": false, "the message comes again before its loss is known": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "test.db")
			synctest.Test(t, func(t *testing.T) {
				client, err := pawl.New(t.Context(), memengine.New(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close(context.Background()) //nolint:errcheck // the test is over
				var effects []string
				well := false
				opts := ConsumerOptions{MaxAttempts: 1, MaxBackoff: time.Second, Single: client.Mutex("single"), OnError: func(error) {}}
				s, stop := consume(t, path, opts, func(_ context.Context, _ *sql.Tx, m Message) error {
					if m.ID == "a1" && !well {
						return errors.New("bad luck")
					}
					effects = append(effects, m.ID)
					return nil
				})
				lost := time.Now().Add(10 * time.Minute) // for the second time
				again := &held{memory: s, m: Message{ID: "a1", Key: "a", Time: time.Now()}, refuses: func() error {
					if time.Now().Before(lost) {
						return errors.New("the broker is away")
					}
					return ErrTaken
				}}
				first := *again
				first.refuses = func() error {
					if early {
						early = false
						s.put(again)
						synctest.Wait()
					}
					return ErrTaken
				}
				after := &held{memory: s, m: Message{ID: "a2", Key: "a", Time: time.Now()}}
				comes := early
				s.put(&first, after)
				<-time.After(time.Minute)
				if !comes {
					s.put(again)
				}
				<-time.After(12 * time.Minute)
				synctest.Wait()
				well = true
				s.put(&held{memory: s, m: first.m})
				<-time.After(time.Hour)
				stop()
				if want := []string{"a1", "a2"}; !slices.Equal(effects, want) {
					t.Errorf("%q took effect, want %q", effects, want)
				}
			})
		})
	}
}
