package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl/dtx"
)

// recoverAll finishes transactions until the only ones left have a living coordinator, or wait for an operator.
func recoverAll(ctx context.Context, o opened, opts *dtx.Options, within time.Duration) (dtx.Status, []dtx.Transaction, error) {
	c, err := dtx.New(ctx, o.Log, o.resources, opts)
	if err != nil {
		return dtx.Status{}, nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		c.Close(ctx) //nolint:errcheck // the next recovery removes the row of this process
	}()
	tick := time.NewTicker(opts.Lease / 10)
	defer tick.Stop()
	begin := time.Now()
	for {
		_, err := c.Recover(ctx)
		left, away := o.Transactions(ctx, o.resources)
		took := time.Since(begin)
		// After the lease each coordinator that is not fenced has shown that it lives.
		left = slices.DeleteFunc(left, func(t dtx.Transaction) bool {
			return len(t.Prepared) == 0 && len(o.unnamed(t)) == 0 || t.State == dtx.Running && took > opts.Lease+opts.Lease/2
		})
		stuck := slices.ContainsFunc(left, func(t dtx.Transaction) bool { return t.State != dtx.Unknown && len(t.Prepared) > 0 })
		if err = errors.Join(err, away); err == nil && !stuck || took > within || ctx.Err() != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return c.Status(), append([]dtx.Transaction{}, left...), err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// unnamed are the databases that commit and that the user has not named: a branch there may still be prepared.
func (o opened) unnamed(all ...dtx.Transaction) (names []string) {
	for _, t := range all {
		for _, name := range t.Recorded {
			if !slices.ContainsFunc(o.resources, func(r *dtx.Resource) bool { return r.Name() == name }) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// transactionView is a transaction in JSON.
type transactionView struct {
	ID          string         `json:"id"`
	State       string         `json:"state"`
	Coordinator string         `json:"coordinator"` // host and process ID
	Prepared    []preparedView `json:"prepared"`
	Recorded    []string       `json:"recorded"` // resources that commit
	Decision    *decisionView  `json:"decision"` // of an operator
}

type preparedView struct {
	Resource string   `json:"resource"`
	Seconds  *float64 `json:"seconds"` // since it was prepared, if the database tells
}

// decisionView is the decision of an operator in JSON.
type decisionView struct {
	ID       string    `json:"id"`
	Decision string    `json:"decision"`
	Reason   string    `json:"reason"`
	Time     time.Time `json:"time"`
}

func viewDecision(h dtx.Heuristic) decisionView {
	return decisionView{h.ID.String(), map[bool]string{true: "commit", false: "abort"}[h.Commit], h.Reason, h.Time.UTC()}
}

func viewTransaction(t dtx.Transaction) transactionView {
	v := transactionView{t.ID.String(), t.State.String(), t.Coordinator, []preparedView{}, append([]string{}, t.Recorded...), nil}
	for _, p := range t.Prepared {
		is := preparedView{Resource: p.Resource}
		if p.Age >= 0 {
			seconds := p.Age.Seconds()
			is.Seconds = &seconds
		}
		v.Prepared = append(v.Prepared, is)
	}
	if t.Heuristic != nil {
		d := viewDecision(*t.Heuristic)
		v.Decision = &d
	}
	return v
}

func printTransactions(w io.Writer, all []dtx.Transaction, asJSON bool) error {
	rows := [][]string{{"ID", "STATE", "OLDEST", "PREPARED", "COORDINATOR"}}
	encoder := json.NewEncoder(w)
	for _, t := range all {
		if asJSON {
			if err := encoder.Encode(viewTransaction(t)); err != nil {
				return err
			}
			continue
		}
		oldest := time.Duration(-1)
		var names []string
		for _, p := range t.Prepared {
			oldest = max(oldest, p.Age)
			names = append(names, printable(p.Resource))
		}
		rows = append(rows, []string{t.ID.String(), t.State.String(), span(oldest), cmp.Or(strings.Join(names, ","), "-"), cmp.Or(printable(t.Coordinator), "-")})
	}
	if asJSON {
		return nil
	}
	return table(w, rows)
}

func printTransaction(w io.Writer, t dtx.Transaction, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(viewTransaction(t))
	}
	text := new(bytes.Buffer)
	fmt.Fprintf(text, "%v: %v\n", t.ID, t.State)
	rows := [][]string{{"  coordinator", cmp.Or(printable(t.Coordinator), "-")}}
	for _, p := range t.Prepared {
		rows = append(rows, []string{"  prepared on", printable(p.Resource) + ", for " + span(p.Age)})
	}
	if t.State == dtx.Committing {
		rows = append(rows, []string{"  to be committed on", cmp.Or(printable(strings.Join(t.Recorded, ", ")), "-")})
	}
	if h := t.Heuristic; h != nil {
		rows = append(rows, []string{"  decided", viewDecision(*h).Decision + ", at " + h.Time.UTC().Format(time.RFC3339)}, []string{"  reason", printable(h.Reason)})
	}
	table(text, rows) //nolint:errcheck // a buffer takes all
	_, err := text.WriteTo(w)
	return err
}

func printDecisions(w io.Writer, all map[dtx.ID]dtx.Heuristic, asJSON bool) error {
	var views []decisionView
	for _, h := range all {
		views = append(views, viewDecision(h))
	}
	return printDecisionViews(w, views, asJSON)
}
