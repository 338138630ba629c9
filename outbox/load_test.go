package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/outbox"
)

// Ten thousand halted keys with messages behind them, and a key with thousands of messages, stop no other key.
func TestManyHaltedKeysAndAHotKey(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		const halted, hot, others = 10_000, 1_000, 1_000
		fill := func(n int, key func(i int) string) {
			t.Helper()
			for from := 0; from < n; from += 1000 {
				var batch []outbox.Message
				for i := from; i < from+1000; i++ {
					batch = append(batch, outbox.Message{Topic: key(i), Key: key(i), Payload: fmt.Append(nil, i)})
				}
				d.enqueue(t, batch...)
			}
		}
		fill(halted, func(i int) string { return fmt.Sprint("halted ", i) })
		if err := d.exec(t.Context(), d.db, "UPDATE "+d.name+" SET state = 4"); err != nil {
			t.Fatal(err)
		}
		fill(halted, func(i int) string { return fmt.Sprint("halted ", i) })
		fill(hot, func(int) string { return "hot" })
		fill(others, func(i int) string { return fmt.Sprint("other ", i%100) })
		var sent order
		p := publish(func(_ context.Context, m outbox.Message) error {
			if m.Key == "hot" {
				sent.add(fmt.Sprintf("%6s", m.Payload))
			}
			return nil
		})
		began := time.Now()
		r, _ := d.run(t, newClient(t), p, outbox.RelayOptions{Poll: 100 * time.Millisecond, Rescan: 5 * time.Second})
		until(t, "the others and the hot key are confirmed", func() bool { return r.Stats().Confirmed == hot+others })
		t.Logf("%v for %d messages", time.Since(began), hot+others)
		for i, payload := range sent.all() {
			if payload != fmt.Sprintf("%6d", i) {
				t.Fatalf("message %d of the hot key is %s", i, payload)
			}
		}
		is, err := d.table.Stats(t.Context(), d.db)
		if err != nil || is.Dead != halted || is.HaltedKeys != halted || is.Pending < halted {
			t.Errorf("%+v, %v", is, err)
		}
	})
}
