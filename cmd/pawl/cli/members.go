package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/group"
)

func newMembers(s *store) *cobra.Command {
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "members NAME",
		Short: "List the live members of a group",
		Long: `List the members of the group NAME that live now, in the order of their IDs. TOKEN is
larger for a later joining. Members join by "pawl join" or by package group.

A member that has died is listed for its TTL and a second at most. After an outage,
members are missing until they have joined again. If none is left while the store grants
no locks, nothing is known, and the exit code is 69.

--json prints one object a line. --watch looks each second until interrupted, also while
the store does not answer, and prints the list when it has changed. --watch --json prints
one object {"members":[...]} a line. To interrupt --watch is no error. The command writes
nothing into the store.`,
		Args: takes(1, 1),
		RunE: verb(func(cmd *cobra.Command, args []string) error {
			if err := pawl.CheckName(args[0]); err != nil {
				return err
			}
			l := &memberLister{name: args[0], asJSON: asJSON, w: cmd.OutOrStdout()}
			if watch { // a store that does not exist yet cannot be watched
				return s.operating(engine.Existing(cmd.Context()), untilInterrupted(l.watch))
			}
			return s.reading(cmd.Context(), func(ctx context.Context, client *pawl.Client) error {
				all, err := l.members(ctx, client)
				if err != nil {
					return err
				}
				return l.print(all)
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&watch, "watch", false, "print the list again when it changes, until interrupted")
	return cmd
}

// memberLister is a run of members. Group.Watch would take part in sweeping, and so write into the store.
type memberLister struct {
	name   string
	asJSON bool
	sets   bool   // print whole sets as JSON
	clear  string // the sequence that clears the screen
	w      io.Writer
}

func (l *memberLister) members(ctx context.Context, client *pawl.Client) (all []group.Member, err error) {
	err = ask(ctx, func(ctx context.Context) error {
		all, err = group.New(client, l.name).Members(ctx)
		return err
	})
	if errors.Is(err, pawl.ErrGrace) {
		err = &exitError{exitUnavailable, err}
	}
	return all, err
}

func (l *memberLister) watch(ctx context.Context, client *pawl.Client) error {
	if _, terminal := terminalWidth(l.w); terminal && !l.asJSON {
		l.clear = "\x1b[H\x1b[2J"
	}
	l.sets = l.asJSON
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var last []group.Member
	printed, away := false, false
	for {
		all, err := l.members(ctx, client)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, pawl.ErrUnavailable), errors.Is(err, pawl.ErrGrace):
			if !away {
				complain(fmt.Errorf("%w; looking again", err))
			}
			away = true
		case err != nil:
			return err
		default:
			if away {
				news("the store answers again")
			}
			if away = false; !printed || !slices.EqualFunc(last, all, sameMember) {
				if err := l.print(all); err != nil {
					return err
				}
				last, printed = all, true
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func sameMember(a, b group.Member) bool {
	return a.ID == b.ID && a.Addr == b.Addr && a.Weight == b.Weight && a.Token == b.Token && maps.Equal(a.Meta, b.Meta)
}

// print prints the members at once, so that a screen does not flicker.
func (l *memberLister) print(all []group.Member) error {
	encoder := json.NewEncoder(l.w)
	switch {
	case l.sets:
		return encoder.Encode(struct {
			Members []group.Member `json:"members"`
		}{append([]group.Member{}, all...)})
	case l.asJSON:
		for _, m := range all {
			if err := encoder.Encode(m); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"ID", "ADDR", "WEIGHT", "TOKEN", "META"}}
	for _, m := range all {
		meta := []string{}
		for _, key := range slices.Sorted(maps.Keys(m.Meta)) {
			meta = append(meta, key+"="+m.Meta[key])
		}
		text := "-"
		if len(meta) > 0 {
			text = printable(strings.Join(meta, " "))
		}
		rows = append(rows, []string{printable(m.ID), printable(m.Addr), strconv.Itoa(m.Weight), strconv.FormatUint(m.Token, 10), text})
	}
	if _, err := io.WriteString(l.w, l.clear); err != nil {
		return err
	}
	return table(l.w, rows)
}
