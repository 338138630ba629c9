package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pawl-go/pawl/outbox"
)

// summaryView is the counts of a table in JSON.
type summaryView struct {
	Pending    int64      `json:"pending"`
	Sent       int64      `json:"sent"`
	Confirmed  int64      `json:"confirmed"`
	Done       int64      `json:"done"`
	Dead       int64      `json:"dead"`
	HaltedKeys int64      `json:"halted_keys"`
	Oldest     *time.Time `json:"oldest"` // of the messages that are not confirmed, by the clock of the database
	LagSeconds int64      `json:"lag_seconds"`
}

func printSummary(w io.Writer, s outbox.Summary, asJSON bool) error {
	if asJSON {
		v := summaryView{s.Pending, s.Sent, s.Confirmed, s.Done, s.Dead, s.HaltedKeys, nil, int64(s.Lag / time.Second)}
		if !s.Oldest.IsZero() {
			oldest := s.Oldest.UTC()
			v.Oldest = &oldest
		}
		return json.NewEncoder(w).Encode(v)
	}
	var rows [][]string
	for _, row := range []struct {
		name string
		n    int64
	}{{"pending", s.Pending}, {"sent", s.Sent}, {"confirmed", s.Confirmed}, {"done", s.Done}, {"dead", s.Dead}, {"halted keys", s.HaltedKeys}} {
		rows = append(rows, []string{row.name, strconv.FormatInt(row.n, 10)})
	}
	oldest := "-"
	if !s.Oldest.IsZero() {
		oldest = s.Oldest.UTC().Format(time.RFC3339) + ", " + span(s.Lag) + " ago"
	}
	return table(w, append(rows, []string{"oldest unconfirmed", oldest}))
}

// messageView is a message in JSON.
type messageView struct {
	ID      string            `json:"id"`
	Topic   string            `json:"topic"`
	Key     string            `json:"key"`
	State   string            `json:"state"`
	Time    time.Time         `json:"time"`    // when it was enqueued, by the clock of the database
	Changed time.Time         `json:"changed"` // when its state changed, as above
	Tries   int               `json:"tries"`   // sendings that failed
	Repeats int               `json:"repeats"` // sendings after the confirm, because it was not done
	Reason  string            `json:"reason"`  // of the last failure
	Headers map[string]string `json:"headers"`
	Payload *[]byte           `json:"payload,omitempty"` // only show tells it
}

func messageOf(e outbox.Entry) messageView {
	return messageView{e.ID, e.Topic, e.Key, e.State.String(), e.Time.UTC(), e.Changed.UTC(), e.Attempt, e.Repeats, e.Reason, e.Headers, nil}
}

func printMessages(w io.Writer, all []outbox.Entry, asJSON bool) error {
	rows := [][]string{{"ID", "TOPIC", "KEY", "STATE", "ENQUEUED", "TRIES", "REASON"}}
	encoder := json.NewEncoder(w)
	for _, e := range all {
		if asJSON {
			if err := encoder.Encode(messageOf(e)); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{printable(e.ID), printable(e.Topic), cmp.Or(printable(e.Key), "-"), e.State.String(), e.Time.UTC().Format(time.RFC3339),
			strconv.Itoa(e.Attempt), cmp.Or(printable(e.Reason), "-")})
	}
	if asJSON {
		return nil
	}
	return table(w, rows)
}

func printMessage(w io.Writer, e outbox.Entry, asJSON bool) error {
	if asJSON {
		v := messageOf(e)
		v.Payload = &e.Payload
		return json.NewEncoder(w).Encode(v)
	}
	text := new(bytes.Buffer)
	fmt.Fprintf(text, "%s: %s\n", printable(e.ID), e.State)
	rows := [][]string{
		{"  topic", printable(e.Topic)}, {"  key", cmp.Or(printable(e.Key), "-")}, {"  enqueued", e.Time.UTC().Format(time.RFC3339)}, {"  changed", e.Changed.UTC().Format(time.RFC3339)},
		{"  tries", strconv.Itoa(e.Attempt)}, {"  repeats", strconv.Itoa(e.Repeats)}, {"  reason", cmp.Or(printable(e.Reason), "-")}, {"  payload", fmt.Sprintf("%d bytes", len(e.Payload))},
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		rows = append(rows, []string{"  header " + printable(name), printable(e.Headers[name])})
	}
	table(text, rows) //nolint:errcheck // a buffer takes all
	_, err := text.WriteTo(w)
	return err
}
