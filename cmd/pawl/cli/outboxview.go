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
	Pending    int64        `json:"pending"`
	Sent       int64        `json:"sent"`
	Confirmed  int64        `json:"confirmed"`
	Done       int64        `json:"done"`
	Dead       int64        `json:"dead"`
	HaltedKeys int64        `json:"halted_keys"`
	Oldest     *time.Time   `json:"oldest"` // of the messages that are not confirmed, by the clock of the database
	LagSeconds int64        `json:"lag_seconds"`
	WaitsLong  bool         `json:"waits_long"` // the lag is a minute or more
	Halted     []haltedView `json:"halted"`     // the first of the halted keys
}

// haltedView is a halted key in JSON.
type haltedView struct {
	Key     string `json:"key"`
	Dead    int    `json:"dead"`
	Waiting int    `json:"waiting"`
	ID      string `json:"id"`     // of the first dead message
	Reason  string `json:"reason"` // why that message failed
}

// waitsLong is a wait after which an operator has to look at the relays.
const waitsLong = time.Minute

// shownKeys is how many halted keys are named.
const shownKeys = 20

func printSummary(w io.Writer, s outbox.Summary, halted []outbox.HaltedKey, asJSON bool) error {
	if asJSON {
		v := summaryView{s.Pending, s.Sent, s.Confirmed, s.Done, s.Dead, s.HaltedKeys, nil, int64(s.Lag / time.Second), s.Lag >= waitsLong, []haltedView{}}
		for _, k := range halted {
			v.Halted = append(v.Halted, haltedView(k))
		}
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
	err := table(w, append(rows, []string{"oldest unconfirmed", oldest}))
	if err == nil && s.Dead > 0 {
		err = printDead(w, s, halted)
	}
	if err == nil && s.Lag >= waitsLong {
		behind := ""
		if len(halted) > 0 {
			behind = ", perhaps only behind the dead ones"
		}
		_, err = fmt.Fprintf(w, "\nMessages wait for long%s. The relays print the reason, if any relay runs.\n", behind)
	}
	return err
}

// printDead names halted keys, and says what an operator can do about dead messages.
func printDead(w io.Writer, s outbox.Summary, halted []outbox.HaltedKey) error {
	rows, rest := [][]string{{"HALTED KEY", "WAITING", "DEAD", "FIRST DEAD", "REASON"}}, s.Dead
	for _, k := range halted {
		rest -= int64(k.Dead)
		rows = append(rows, []string{printable(k.Key), strconv.Itoa(k.Waiting), strconv.Itoa(k.Dead), printable(k.ID), cmp.Or(printable(k.Reason), "-")})
	}
	fmt.Fprintln(w) //nolint:errcheck // the next write tells
	if len(halted) > 0 {
		if err := table(w, rows); err != nil {
			return err
		}
		fmt.Fprintln(w, "The waiting messages of these keys are sent after the dead ones. Only relays with --continue-keys send them before.") //nolint:errcheck // as above
	}
	if rest > 0 {
		further := ""
		if more := s.HaltedKeys - int64(len(halted)); more > 0 {
			further = fmt.Sprintf("of %d further keys, or ", more)
		}
		fmt.Fprintf(w, "Dead messages %swithout a key: %d (try: pawl outbox ls --state dead)\n", further, rest) //nolint:errcheck // as above
	}
	_, err := fmt.Fprintln(w, "Mend the reason, and then send dead messages again: pawl outbox requeue --key KEY, or an ID, or --all")
	return err
}

// messageView is a message in JSON.
type messageView struct {
	ID      string            `json:"id"`
	Topic   string            `json:"topic"`
	Key     string            `json:"key"`
	State   string            `json:"state"`
	Time    time.Time         `json:"time"`    // when it was enqueued, by the clock of the database
	Changed time.Time         `json:"changed"` // when its state changed, as above
	Tries   int               `json:"tries"`   // sendings that failed and counted
	Repeats int               `json:"repeats"` // sendings after the confirm, because it was not done
	Reason  string            `json:"reason"`  // of the last of them
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
