package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// resourceView is a name in JSON. Durations are in milliseconds, and null where the store
// does not tell.
type resourceView struct {
	Name    string       `json:"name"`
	Kind    string       `json:"kind"`              // lock or semaphore; "" when it is free
	Permits int          `json:"permits,omitempty"` // of a semaphore
	Resized int          `json:"resized,omitempty"` // the number that an operator has set
	Barging bool         `json:"barging"`
	Leader  *string      `json:"leader,omitempty"` // the announcement of an election's leader
	Grace   *graceView   `json:"grace,omitempty"`
	Broken  *pawl.Broken `json:"broken,omitempty"` // the note of the last break
	Claims  []claimView  `json:"claims"`
}

// graceView says that the store grants nothing for now.
type graceView struct {
	AgeMS  *int64 `json:"age_ms"` // since it was started
	LeftMS *int64 `json:"left_ms"`
}

// claimView is a claim in JSON.
type claimView struct {
	State   string `json:"state"` // granted or waiting
	Place   int    `json:"place"` // in the queue from 1; 0 when granted
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	Session string `json:"session"`
	Label   string `json:"label"`
	Mode    string `json:"mode,omitempty"`    // of a lock: exclusive or shared
	Permits int    `json:"permits,omitempty"` // of a semaphore
	Token   uint64 `json:"token"`             // 0 while the claim waits
	Kept    bool   `json:"kept"`              // the claim stays for its --hold-for, even if its holder leaves
	AgeMS   *int64 `json:"age_ms"`            // since the request
	HeldMS  *int64 `json:"held_ms"`           // since the grant
	LeftMS  *int64 `json:"left_ms"`           // until the session ends unless the client renews it
}

// seen is a name with the parts that only some verbs ask for.
type seen struct {
	pawl.Resource
	resized int
	leader  *string
}

func viewOf(r seen) resourceView {
	view := resourceView{
		Name: r.Name, Kind: r.Kind, Permits: r.Permits, Resized: r.resized, Barging: r.Barging,
		Leader: r.leader, Grace: graceOf(r.Resource), Broken: r.Broken, Claims: []claimView{},
	}
	for _, p := range r.Holders {
		view.Claims = append(view.Claims, claimOf(r.Resource, p, "granted", 0))
	}
	for i, p := range r.Waiters {
		view.Claims = append(view.Claims, claimOf(r.Resource, p, "waiting", i+1))
	}
	return view
}

// graceOf returns nil when the store grants.
func graceOf(r pawl.Resource) *graceView {
	if !r.Grace.On() {
		return nil
	}
	return &graceView{milliseconds(r.Grace.Age), milliseconds(r.Grace.Left)}
}

func claimOf(r pawl.Resource, p pawl.Party, state string, place int) claimView {
	v := claimView{
		State: state, Place: place, ID: p.Claim, Owner: p.Owner, Session: p.Session, Label: p.Label,
		Permits: p.Permits, Token: uint64(p.Token), Kept: p.Kept,
		AgeMS: milliseconds(p.Age), HeldMS: milliseconds(p.Held), LeftMS: milliseconds(p.Left),
	}
	if r.Permits == 0 {
		v.Mode = wants(p)
	}
	return v
}

func milliseconds(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

// kind names the use of a name.
func kind(r pawl.Resource) string {
	text := r.Kind
	if r.Permits > 0 {
		text = fmt.Sprintf("%s of %d", text, r.Permits)
	}
	if r.Barging {
		text = "barging " + text
	}
	return text
}

// wants names the mode or permits that a party holds or wants.
func wants(p pawl.Party) string {
	switch {
	case p.Permits > 0:
		return strconv.Itoa(p.Permits)
	case p.Shared:
		return "shared"
	}
	return "exclusive"
}

// holders are the holding parties, one for each owner. A claim that --hold-for keeps counts only
// when its owner holds nothing else.
func holders(r pawl.Resource) (all []pawl.Party) {
	at := make(map[string]int)
	for _, p := range r.Holders {
		i, again := at[p.Owner]
		switch {
		case !again:
			at[p.Owner] = len(all)
			all = append(all, p)
		case all[i].Kept && !p.Kept || all[i].Kept == p.Kept && p.Permits > all[i].Permits:
			all[i] = p
		}
	}
	return all
}

// heldBy names the holders, and since when the first of them holds by the store's clock.
func heldBy(r pawl.Resource) string {
	all := holders(r)
	text := printable(all[0].Label)
	switch first := all[0]; {
	case first.Kept && first.Left >= 0:
		text = fmt.Sprintf("nobody, but kept by %s for %s more", text, span(first.Left))
	case first.Kept:
		text = "nobody, but kept by " + text
	default:
		text += " for " + lasting(first.Held, "")
	}
	if more := len(all) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// sessionEnd says when the session of the first holder ends.
func sessionEnd(r pawl.Resource) string {
	all := holders(r)
	if len(all) == 0 || all[0].Kept {
		return ""
	}
	return "; session ends in " + lasting(all[0].Left, " unless renewed")
}

// graceText says why the store grants nothing now.
func graceText(r pawl.Resource) string { return (&engine.GraceError{Grace: r.Grace}).Error() }

// span prints a duration that the store may not tell.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "unknown"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// printable keeps texts of other clients in the store from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
