package dtx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/internal/protocol"
)

// Tx is a transaction in [Coordinator.Run]. As its branches, a Tx is for one goroutine at a time.
type Tx struct {
	c        *Coordinator
	id       ID
	branches []*branch
	local    *branch // in the log's own database, or nil
	reason   error   // the first reason of an abort
}

// ID returns the ID of the transaction.
func (t *Tx) ID() ID { return t.id }

// On returns the branch of a resource, as the transaction that outbox, idem and inbox take. On returns a branch whose statements fail
// if the transaction was begun without the resource.
func (t *Tx) On(r *Resource) dialect.DB {
	for _, b := range t.branches {
		if r != nil && b.name == r.name {
			return b
		}
	}
	return &branch{Resource: &Resource{}, doom: fmt.Errorf("dtx: %w: the transaction was begun without this resource", pawl.ErrInvalid), open: true}
}

// Run begins a branch on each of the resources, or on all that the coordinator knows. Then Run calls fn, and commits all branches if fn
// returns nil. If fn returns an error or panics, all are rolled back.
//
// The error matches [ErrAborted], [ErrPending] or [ErrInDoubt], and [Error] tells the ID. If ctx ends before the
// decision, the transaction aborts. So ctx bounds how long a database that hangs keeps the rows of the others locked. From the moment that
// Run asks the log for the decision, Run takes up to three times Options.Settle, whether or not ctx has ended. To give a connection back takes up to a
// second more.
//
// Run refuses a resource that can be prepared, where New has the name as read-only or as the log's. That is so in a transaction of that resource alone, too.
//
// Only fn may use the branches. Fn must not end a branch by a statement such as COMMIT, and must close the rows of its queries. MySQL and MariaDB
// commit before a statement that changes a table's definition, such as CREATE TABLE. Such a statement fails in a branch, and the transaction aborts.
// A stored procedure, an EXECUTE, a compound statement or a second statement in one text may hide the statement. Then a branch of PostgreSQL commits early, and so
// does a branch that is not prepared, also if the transaction aborts. Not prepared are the branch of [Log.Resource] and the only branch that writes.
func (c *Coordinator) Run(ctx context.Context, fn func(ctx context.Context, tx *Tx) error, resources ...*Resource) error {
	resources, err := c.choose(resources)
	if err != nil {
		return err
	}
	id, err := c.begin(ctx)
	switch {
	case errors.Is(err, pawl.ErrClosed):
		return err
	case err != nil:
		return fmt.Errorf("dtx: %w before it began: %w", ErrAborted, err)
	}
	t := &Tx{c: c, id: id}
	forget := false
	defer func() { c.leave(id, forget) }()
	leave, err := c.enterRooms(ctx, resources)
	if err != nil {
		t.reason = err
		return t.result(protocol.Aborted)
	}
	defer leave()
	defer t.undo()
	err = t.open(ctx, resources)
	if err == nil {
		err = fn(ctx, t)
	}
	outcome := protocol.Aborted
	if t.reason = err; err == nil {
		outcome = t.commit(ctx)
	}
	forget = outcome == protocol.Committed
	return t.result(outcome)
}

// choose returns the resources of a transaction in the order of their names, so that transactions wait for connections in one order.
func (c *Coordinator) choose(resources []*Resource) ([]*Resource, error) {
	if len(resources) == 0 {
		for _, r := range c.resources {
			resources = append(resources, r)
		}
	}
	if slices.Contains(resources, nil) {
		return nil, fmt.Errorf("dtx: %w: a resource is nil", pawl.ErrInvalid)
	}
	resources = slices.SortedFunc(slices.Values(resources), func(a, b *Resource) int { return cmp.Compare(a.Name(), b.Name()) })
	locals := 0
	for i, r := range resources {
		known := c.resources[r.name]
		switch {
		case known == nil || known.db != r.db:
			return nil, fmt.Errorf("dtx: %w: the coordinator does not know the resource %s", pawl.ErrInvalid, r.name)
		case r.log != nil && known.log == nil && r.db != c.log.db: // else New has seen the log
			return nil, failed("run", foreignLog(r))
		case r.prepares() && !known.prepares(): // recovery would list no branches there: refused also if this transaction prepares none
			return nil, fmt.Errorf("dtx: %w: the coordinator prepares nothing on the resource %s, which New has as read-only or as the log's", pawl.ErrInvalid, r.name)
		case i > 0 && r.name == resources[i-1].name:
			return nil, fmt.Errorf("dtx: %w: the resource %s is named twice", pawl.ErrInvalid, r.name)
		case r.log != nil:
			locals++
		}
	}
	if n := len(resources); n < 1 || n > protocol.MaxBranches || locals > 1 {
		return nil, fmt.Errorf("dtx: %w: %d resources, %d of them of Log.Resource: 1 to %d are allowed, and 1 of the log", pawl.ErrInvalid, n, locals, protocol.MaxBranches)
	}
	return resources, c.fit(resources)
}

func (t *Tx) open(ctx context.Context, resources []*Resource) error {
	writers := 0
	for _, r := range resources {
		if !r.readOnly {
			writers++
		}
	}
	for i, r := range resources {
		b, err := r.begin(ctx, branchID{t.id, i}.name(), writers == 1, t.c.opts.Lease)
		if err != nil {
			return err
		}
		t.branches = append(t.branches, b)
		if b.log != nil && writers > 1 {
			t.local = b
		}
	}
	return nil
}

// undo rolls back all branches that are not ended.
func (t *Tx) undo() {
	for _, b := range t.branches {
		b.undo()
	}
}

func (t *Tx) result(outcome protocol.Outcome) error {
	var is error
	switch outcome {
	case protocol.Committed:
		return nil
	case protocol.Aborted:
		is = ErrAborted
	case protocol.Pending:
		is = ErrPending
	default:
		is = ErrInDoubt
	}
	if t.reason != nil {
		is = fmt.Errorf("%w: %w", is, t.reason)
	}
	return &Error{t.id, is}
}

func (t *Tx) commit(ctx context.Context) protocol.Outcome {
	var writer *branch
	writers := 0
	for _, b := range t.branches {
		if !b.readOnly {
			writers, writer = writers+1, b
		}
	}
	if writers > 1 {
		return t.twoPhases(ctx)
	}
	for _, b := range t.branches {
		if b != writer {
			if _, err := b.vote(ctx); err != nil {
				t.reason = err
				return protocol.Aborted
			}
		}
	}
	switch {
	case writer == nil:
		return protocol.Committed
	case ctx.Err() != nil: // a driver that sends nothing does not say so
		t.reason = context.Cause(ctx)
		return protocol.Aborted
	}
	lost, err := writer.commit(ctx)
	t.reason = err
	switch {
	case lost:
		return protocol.InDoubt
	case err != nil:
		return protocol.Aborted
	}
	return protocol.Committed
}

// twoPhases does the actions of the protocol, each in a goroutine, and tells the protocol what came of them.
func (t *Tx) twoPhases(ctx context.Context) protocol.Outcome {
	state := protocol.State{N: int8(len(t.branches))}
	answers := make(chan answer, len(t.branches)+1)
	for i, b := range t.branches {
		go func() {
			step("prepare", i)
			kind, err := b.vote(ctx)
			if kind == protocol.NoAnswer {
				t.c.linger(t.id.coordinator)
			}
			step("prepared", i)
			answers <- answer{protocol.Event{Kind: kind, Branch: int8(i)}, err}
		}()
	}
	// After the decision the end of ctx changes nothing.
	settle := context.WithoutCancel(ctx)
	for state.Phase != protocol.Over {
		a := <-answers
		if t.reason == nil {
			t.reason = a.err
		}
		var actions []protocol.Action
		state, actions = state.Step(a.Event)
		for _, todo := range actions {
			if todo.Do != protocol.Forget { // which is for later
				go func() { answers <- t.do(ctx, settle, todo) }()
			}
		}
	}
	return state.Outcome
}

type answer struct {
	protocol.Event
	err error
}

func (t *Tx) do(ctx, settle context.Context, todo protocol.Action) answer {
	settle, cancel := context.WithTimeout(settle, t.c.opts.Settle)
	defer cancel()
	e := protocol.Event{Branch: todo.Branch}
	var err error
	switch todo.Do {
	case protocol.Decide:
		step("decide", 0)
		e.Kind, err = t.decide(ctx, settle)
		step("decided", 0)
	case protocol.Ask:
		t.c.retire(t.id.coordinator)
		e.Kind, err = t.ask(settle)
	default:
		commit := todo.Do == protocol.Commit
		step("finish", int(todo.Branch))
		if err = t.branches[todo.Branch].end(settle, commit); err != nil {
			e.Kind = protocol.NoAnswer
		} else {
			e.Kind = protocol.Finished
		}
		step("finished", int(todo.Branch))
	}
	return answer{e, err}
}

// decide asks the log to commit the transaction.
func (t *Tx) decide(ctx, settle context.Context) (protocol.Kind, error) {
	if ctx.Err() != nil {
		return protocol.LogRefused, context.Cause(ctx)
	}
	var names []string
	for _, b := range t.branches {
		if !b.plain {
			names = append(names, b.name)
		}
	}
	if t.local != nil {
		return t.decideLocally(settle, names)
	}
	written, err := t.c.log.decide(settle, t.c.log.db, t.id, names)
	switch {
	case err != nil:
		return protocol.LogSilent, fmt.Errorf("ask the log: %w", err)
	case !written:
		t.c.retire(t.id.coordinator)
		return protocol.LogRefused, ErrRecovered
	}
	return protocol.LogWritten, nil
}

// decideLocally commits the branch of the log's own database together with the record.
func (t *Tx) decideLocally(ctx context.Context, names []string) (protocol.Kind, error) {
	written, err := t.c.log.decide(ctx, t.local.conn, t.id, names)
	if err == nil && !written {
		t.c.retire(t.id.coordinator)
		return protocol.LogRefused, ErrRecovered
	}
	step("record", 0)
	lost := t.local.unsure(err)
	if err == nil {
		lost, err = t.local.commit(ctx)
	}
	switch {
	case lost:
		t.local.release(false)
		return protocol.LogSilent, fmt.Errorf("commit with the log: %w", err)
	case err != nil:
		return protocol.LogRefused, err
	}
	return protocol.LogWritten, nil
}

// ask asks the log again while its database cannot be reached.
func (t *Tx) ask(ctx context.Context) (protocol.Kind, error) {
	for {
		kind, err := t.c.log.ask(ctx, t.id)
		if err == nil || !pause(ctx) {
			return kind, err
		}
	}
}
