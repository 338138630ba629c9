package halfmsg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox/internal/batches"
	"github.com/pawl-go/pawl/outbox/internal/reasons"
)

const (
	questions   = 16 // under way at most
	perProducer = 4  // of those
)

// Asker asks a producer what became of the transaction of a half message, whose age is the time since Prepare. The producer
// answers by [Barrier.Answer]. An Asker is safe for concurrent use and returns when ctx ends. See [AskHTTP].
type Asker func(ctx context.Context, producer, id string, age time.Duration) (Outcome, error)

// Run asks about half messages whose submission does not come, until ctx ends. Each question is claimed in the table, so any number of
// processes may run. When Run returns, no question is under way. The error is not nil only if ask is nil.
func (c *Coordinator) Run(ctx context.Context, ask Asker) error {
	if ask == nil {
		return failed("run", fmt.Errorf("%w: ask is nil", pawl.ErrInvalid))
	}
	r := &run{Coordinator: c, ask: ask, busy: make(map[string]int), away: make(map[string]rest), locked: make(map[string]rest), done: make(chan struct{}, 1)}
	defer r.group.Wait()
	r.group.Go(func() { r.clean(ctx) })
	for ctx.Err() == nil {
		err := r.round(ctx)
		if err != nil && ctx.Err() == nil {
			c.tell(err)
		}
		timer := time.NewTimer(500 * time.Millisecond)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-r.done:
			if err != nil { // no round after another while the database is away
				<-timer.C
			}
		}
		timer.Stop()
	}
	return nil
}

func (c *Coordinator) tell(err error) {
	if c.opts.OnError != nil {
		c.opts.OnError(err)
	}
}

// run is a call of Run.
type run struct {
	*Coordinator
	ask    Asker
	group  sync.WaitGroup
	done   chan struct{}   // a question has ended
	locked map[string]rest // due half messages whose claims met a lock

	mu   sync.Mutex
	all  int             // questions under way
	busy map[string]int  // the same by producer
	away map[string]rest // producers that did not answer
}

// forgotten is after how long a half message that was locked, and that has come behind others since, is as the others again.
const forgotten = 10 * time.Minute

// rest says until when a producer that did not answer, or a half message that was locked, is left alone.
type rest struct {
	until time.Time
	tries int // in a row
}

// again is the rest after a further try.
func (r rest) again(least, most time.Duration) rest {
	return rest{time.Now().Add(backoff(r.tries+1, least, most)), r.tries + 1}
}

// round begins as many questions as are due and may be under way.
func (r *run) round(ctx context.Context) error {
	free, without := r.free()
	if free == 0 {
		return nil
	}
	visit, stop := context.WithTimeout(ctx, r.opts.Timeout)
	s := r.entries().Add("state = 0 AND due <= ", r.now())
	for _, name := range without {
		s.Add(" AND producer <> ").Value(name)
	}
	due, err := r.list(visit, s.Add(" ORDER BY due LIMIT ").Value(free+len(r.locked)))
	stop()
	if err != nil {
		return failed("read half messages", err)
	}
	return r.begins(ctx, due)
}

// begins begins questions. A half message that was locked waits, and comes behind the others, and the first lock ends the round. So rows
// that stay locked cost a second each, from time to time.
func (r *run) begins(ctx context.Context, due []Entry) error {
	now := time.Now()
	maps.DeleteFunc(r.locked, func(_ string, l rest) bool { return now.Sub(l.until) > forgotten })
	slices.SortStableFunc(due, func(a, b Entry) int { return cmp.Compare(r.locked[a.ID].tries, r.locked[b.ID].tries) })
	for _, e := range due {
		if now.Before(r.locked[e.ID].until) || !r.begin(e.Producer) {
			continue
		}
		mine, err := r.claim(ctx, e)
		if mine {
			r.group.Go(func() { r.asked(e.Producer, r.question(ctx, e)); r.end(e.Producer) })
		} else {
			r.end(e.Producer)
		}
		if errors.Is(err, errLocked) {
			r.locked[e.ID] = r.locked[e.ID].again(2*time.Second, time.Minute)
			r.tell(failed("claim a question about "+e.ID, err))
			return nil
		}
		if err != nil {
			return failed("claim a question", err)
		}
		delete(r.locked, e.ID)
	}
	return nil
}

// clean removes old half messages each minute, beside the questions, and tells an error in each minute.
func (r *run) clean(ctx context.Context) {
	deleter := batches.Deleter{Bound: r.opts.Timeout}
	walks := []walk{{state: Submitted}, {state: Aborted}}
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for ctx.Err() == nil {
		var errs error
		for i := range walks {
			errs = errors.Join(errs, r.removeOld(ctx, &deleter, &walks[i]))
		}
		if errs != nil && ctx.Err() == nil {
			r.tell(failed("clean", errs))
		}
		select {
		case <-ctx.Done():
		case <-minute.C:
		}
	}
}

// walk goes through the half messages of a state, in the order of their index.
type walk struct {
	state State
	last  place // the next minute goes on behind that place
}

// removeOld removes the old half messages of a state. A half message that the database refuses to delete is left. Where many are left, the walk
// goes on behind them in the next minute.
func (r *run) removeOld(ctx context.Context, deleter *batches.Deleter, w *walk) (failure error) {
	for {
		visit, stop := context.WithTimeout(ctx, r.opts.Timeout)
		all, old, err := places(visit, r.db, r.find(w), "due")
		stop()
		if err != nil {
			w.last = place{} // because nothing is known of what lies behind
			return err
		}
		is := batches.Delete(ctx, deleter, old, func(ctx context.Context, some []string) (int, error) {
			result, err := dialect.DeleteByKey(r.new(), r.table.Name, "id", some).Exec(ctx, r.db)
			if err != nil {
				return 0, err
			}
			n, err := result.RowsAffected()
			return int(n), err
		})
		// SQLite or a deadlock is no reason to tell: the next minute comes.
		if again := dialect.Again(is.Err) && (r.dialect == dialect.SQLite || !dialect.LockTimeout(is.Err)); failure == nil && !again {
			failure = is.Err
		}
		switch {
		case ctx.Err() != nil:
			return failure
		case is.Tried == len(old) && len(old) < mostRemoved:
			w.last = place{}
			return failure
		}
		if w.last = all[is.Tried-1]; is.Deleted == 0 {
			return failure
		}
	}
}

// find finds old half messages. A question is due after Timeout and MaxWait at most. So the index has the young half messages
// behind the old ones, but for those of such a time, and none of them is read.
func (r *run) find(w *walk) *dialect.Statement {
	s := r.new().Add("SELECT due, id FROM ").Table(r.table.Name).Add(" WHERE state = ").Value(int(w.state)).
		Add(" AND changed < ", r.now(), " - ").Value(seconds(r.opts.Retention)).Add(" AND ")
	return behind(s, r.dialect, "due", w.last, seconds(r.opts.Retention)-seconds(r.opts.Timeout)-seconds(r.opts.MaxWait))
}

// free returns how many questions may begin, and the producers that get none now.
func (r *run) free() (n int, without []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, n := range r.busy {
		if n >= perProducer {
			without = append(without, name)
		}
	}
	for name, p := range r.away {
		if time.Now().Before(p.until) {
			without = append(without, name)
		}
	}
	slices.Sort(without) // so that the database can keep the statement prepared
	return questions - r.all, slices.Compact(without)
}

func (r *run) begin(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[name] >= perProducer || r.all >= questions {
		return false
	}
	r.busy[name]++
	r.all++
	return true
}

// asked notes whether a producer answered. A producer that did not answer gets no question for a while.
func (r *run) asked(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.away, name)
	} else {
		r.away[name] = r.away[name].again(100*time.Millisecond, r.opts.AskAfter)
	}
}

// end gives back what begin took.
func (r *run) end(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all--
	if r.busy[name]--; r.busy[name] == 0 {
		delete(r.busy, name)
	}
	select {
	case r.done <- struct{}{}:
	default:
	}
}

// backoff is the wait after so many tries: doubled each time, from the least to the most.
func backoff(tries int, least, most time.Duration) time.Duration {
	wait := least
	for range tries - 1 {
		if wait *= 2; wait >= most {
			return most
		}
	}
	return min(wait, most)
}

// errLocked says that another transaction has a half message.
var errLocked = errors.New("another transaction has locked the half message")

// claim sets the time of the next question, by compare-and-set, so that no other process asks the same now.
func (r *run) claim(ctx context.Context, e Entry) (bool, error) {
	wait := seconds(r.opts.Timeout) + seconds(backoff(e.Asks+1, r.opts.AskAfter, r.opts.MaxWait))
	brief, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	result, err := r.new().Add("UPDATE ").Table(r.table.Name).Add(" SET asks = asks + 1, due = ", r.now(), " + ").Value(wait).Add(" WHERE state = 0 AND id = ").Value(e.ID).
		Add(" AND asks = ").Value(e.Asks).Exec(brief, r.db)
	waited := brief.Err() != nil || r.dialect != dialect.SQLite && (dialect.LockTimeout(err) || dialect.OutOfTime(err)) // the server may be less patient
	if err != nil && waited && ctx.Err() == nil {
		return false, fmt.Errorf("%w: %w", errLocked, err)
	}
	if dialect.Again(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// question asks the producer and does what the answer says. The error is that of a producer that did not answer.
func (r *run) question(ctx context.Context, e Entry) error {
	within, stop := context.WithTimeout(ctx, r.opts.Timeout)
	outcome, unanswered := r.ask(within, e.Producer, e.ID, e.age)
	stop()
	if ctx.Err() != nil {
		return nil
	}
	reason := "the transaction may be open"
	if unanswered != nil {
		reason = unanswered.Error()
		r.tell(fmt.Errorf("halfmsg: ask %s about %s: %w", e.Producer, e.ID, unanswered))
	} else if want, decided := outcome.decides(); decided {
		visit, stop := context.WithTimeout(ctx, r.opts.Timeout)
		err := r.decide(visit, e.ID, want)
		stop()
		if err == nil {
			if want == Submitted && r.opts.Wake != nil {
				r.opts.Wake()
			}
			return nil
		}
		reason = err.Error()
		r.tell(fmt.Errorf("halfmsg: %s is %v, and so to be %v: %w", e.ID, outcome, want, err))
	}
	visit, stop := context.WithTimeout(ctx, r.opts.Timeout)
	defer stop()
	if err := reasons.Write(reason, func(reason string) error {
		_, err := r.new().Add("UPDATE ").Table(r.table.Name).Add(" SET reason = ").Value(reason).Add(" WHERE state = 0 AND id = ").Value(e.ID).Exec(visit, r.db)
		return err
	}); err != nil {
		r.tell(failed("write a reason", err))
	}
	if errors.Is(unanswered, ErrTooOld) {
		return nil // the producer is there
	}
	return unanswered
}
