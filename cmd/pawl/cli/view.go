package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/pawl-go/pawl/engine"
)

// resourceView is a resource in JSON.
type resourceView struct {
	Name     string      `json:"name"`
	Kind     engine.Kind `json:"kind"`
	Capacity int64       `json:"capacity"`
	Barging  bool        `json:"barging"`
	Claims   []claimView `json:"claims"`
}

// claimView is a claim in JSON.
type claimView struct {
	State   string `json:"state"` // granted or waiting
	Place   int    `json:"place"` // in the queue from 1; 0 when granted
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	Session string `json:"session"`
	Label   string `json:"label"`
	Weight  int64  `json:"weight"`
	Token   uint64 `json:"token"`  // 0 while it waits
	AgeMS   *int64 `json:"age_ms"` // since it entered; null when the store does not tell
}

func viewOf(r engine.Resource) resourceView {
	view := resourceView{r.Name, r.Kind, r.Capacity, r.Barging, []claimView{}}
	place := 0
	for _, c := range r.Claims {
		v := claimView{
			State: "granted", ID: c.ID, Owner: c.Owner, Session: c.Session, Label: c.Label,
			Weight: c.Weight, Token: uint64(c.Token),
		}
		if c.Token == 0 {
			place++
			v.State, v.Place = "waiting", place
		}
		if c.Age >= 0 {
			ms := c.Age.Milliseconds()
			v.AgeMS = &ms
		}
		view.Claims = append(view.Claims, v)
	}
	return view
}

// split returns the granted and the waiting claims, each in order.
func split(r engine.Resource) (granted, waiting []engine.ClaimInfo) {
	for _, c := range r.Claims {
		if c.Token != 0 {
			granted = append(granted, c)
		} else {
			waiting = append(waiting, c)
		}
	}
	return granted, waiting
}

// kind names what a resource is used as.
func kind(r engine.Resource) string {
	text := string(r.Kind)
	if r.Kind == engine.KindSemaphore {
		text = fmt.Sprintf("%s of %d", text, r.Capacity)
	}
	if r.Barging {
		text = "barging " + text
	}
	return text
}

// weight names how much of a resource a claim is for.
func weight(r engine.Resource, c engine.ClaimInfo) string {
	switch {
	case r.Kind == engine.KindLock && c.Weight == r.Capacity:
		return "exclusive"
	case r.Kind == engine.KindLock:
		return "shared"
	}
	return strconv.FormatInt(c.Weight, 10)
}

func age(c engine.ClaimInfo) string {
	switch {
	case c.Age < 0:
		return "-"
	case c.Age < 10*time.Second:
		return c.Age.Round(100 * time.Millisecond).String()
	}
	return c.Age.Round(time.Second).String()
}

// printable keeps what others wrote into the store from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// table prints rows in columns.
func table(w io.Writer, rows [][]string) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tab, strings.Join(row, "\t"))
	}
	return tab.Flush()
}
