package cli

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"

	"github.com/pawl-go/pawl"
)

// electionNames begin the names of the locks of elections.
const electionNames = "pawl:election/"

// leadersAtOnce is about how many announcements a list asks for at a time.
const leadersAtOnce = 32

// leader returns the leader's announcement, if the name is that of an election.
func leader(ctx context.Context, client *pawl.Client, r pawl.Resource) (*string, error) {
	election, is := strings.CutPrefix(r.Name, electionNames)
	if !is || len(r.Holders) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	l, err := client.Election(election).Leader(ctx)
	switch {
	case errors.Is(err, pawl.ErrUnavailable):
		return nil, err
	case err != nil || l.Token == 0: // the store has no announcement
		return nil, nil
	}
	value := string(l.Value)
	return &value, nil
}

// withLeaders yields a list, in its order, with the announcements of leaders. These cost two requests
// each, so that withLeaders asks for many at once.
func withLeaders(ctx context.Context, client *pawl.Client, list iter.Seq2[pawl.Resource, error]) iter.Seq2[seen, error] {
	type answer struct {
		seen
		err error
	}
	return func(yield func(seen, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var asking sync.WaitGroup
		answers := make(chan chan answer, leadersAtOnce) // in the order of the list
		asking.Go(func() {
			defer close(answers)
			for r, err := range list {
				a := make(chan answer, 1)
				select {
				case answers <- a:
				case <-ctx.Done():
					return
				}
				if err != nil {
					a <- answer{seen{Resource: r}, err}
					continue
				}
				asking.Go(func() {
					is, err := leader(ctx, client, r)
					a <- answer{seen{Resource: r, leader: is}, err}
				})
			}
		})
		defer asking.Wait()
		defer cancel()
		for a := range answers {
			if got := <-a; !yield(got.seen, got.err) {
				return
			}
		}
	}
}
