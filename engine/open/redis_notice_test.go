package open_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestDeletedByHand: a holder learns of a deletion without a request. The client is alone, or asks
// a Sentinel for its server.
func TestDeletedByHand(t *testing.T) {
	server := testservers.Redis(t)
	sentinel := testservers.RedisObserver(t, server.Addr)
	raw := oneRedis(t, server.Addr)
	for _, url := range []string{"redis://" + server.Addr, sentinelURL(testservers.ObservedMaster, sentinel.Addr)} {
		name, _, _ := strings.Cut(url, ":")
		t.Run(name, func(t *testing.T) {
			c, err := pawl.New(t.Context(), connect(t, url), &pawl.Options{TTL: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(t.Context()) //nolint:errcheck // checked elsewhere
			l := hold(t, c, name)
			sessiontest.Until(t, "the server tracks what is held", func() bool {
				info, err := raw.Do(t.Context(), raw.B().Info().Section("stats").Build()).ToString()
				if err != nil {
					t.Fatal(err)
				}
				return strings.Contains(info, "tracking_total_keys:1\r")
			})
			if err := raw.Do(t.Context(), raw.B().Del().Key("pawl:{"+name+"}").Build()).Error(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-l.ended:
			case <-sessiontest.Soon(t).Done():
				t.Fatal("not told")
			}
		})
	}
}
