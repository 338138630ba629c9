package halfmsg_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/outbox"
	"github.com/pawl-go/pawl/outbox/halfmsg"
)

// dieAt is a process that kills itself at a step: a producer, or a coordinator that decides.
func dieAt(ctx context.Context) error {
	kind, err := strconv.Atoi(os.Getenv("PAWL_HALF_DIALECT"))
	if err != nil {
		return err
	}
	at, err := strconv.Atoi(os.Getenv("PAWL_HALF_STEP"))
	if err != nil {
		return err
	}
	d := &database{dialect: dialect.Dialect(kind), source: os.Getenv("PAWL_HALF_SOURCE"), name: os.Getenv("PAWL_HALF_TABLE")}
	if err := d.open(nil); err != nil {
		return err
	}
	step := func(n int) error {
		if n != at {
			return nil
		}
		me, err := os.FindProcess(os.Getpid())
		if err != nil {
			return err
		}
		if err := me.Kill(); err != nil {
			return err
		}
		select {}
	}
	if os.Getenv("PAWL_HALF_ROLE") == "producer" {
		return d.produce(ctx, os.Getenv("PAWL_HALF_ORDER"), step)
	}
	return d.coordinate(ctx, os.Getenv("PAWL_HALF_ORDER"), step)
}

const producerSteps = 7

// produce does what Send does, step by step.
func (d *database) produce(ctx context.Context, order string, step func(int) error) error {
	if err := step(0); err != nil {
		return err
	}
	id, err := d.coordinator.Prepare(ctx, "shop", outbox.Message{ID: order, Topic: "t"})
	if err := errors.Join(err, step(1)); err != nil {
		return err
	}
	tx, err := d.db.BeginTx(ctx, nil)
	if err := errors.Join(err, step(2)); err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	if err := errors.Join(d.barrier.Pass(ctx, tx, id), step(3)); err != nil {
		return err
	}
	if err := errors.Join(d.insertOrder(ctx, tx, order), step(4)); err != nil {
		return err
	}
	if err := errors.Join(tx.Commit(), step(5)); err != nil {
		return err
	}
	return errors.Join(d.coordinator.Submit(ctx, id), step(6))
}

const coordinatorSteps = 3

// coordinate runs the coordinator until a half message is decided. The process dies before the answer, after the answer and
// before it is written, or after that.
func (d *database) coordinate(ctx context.Context, id string, step func(int) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for e, err := d.coordinator.Status(ctx, id); err == nil && e.State == halfmsg.Prepared; e, err = d.coordinator.Status(ctx, id) {
			time.Sleep(5 * time.Millisecond)
		}
		step(2) //nolint:errcheck // the test sees that nobody died
		stop()
	}()
	return d.coordinator.Run(ctx, func(ctx context.Context, producer, id string, age time.Duration) (halfmsg.Outcome, error) {
		if err := step(0); err != nil {
			return halfmsg.Open, err
		}
		outcome, err := d.ask(ctx, producer, id, age)
		if err == nil && outcome != halfmsg.Open {
			err = step(1)
		}
		return outcome, err
	})
}

// die runs a process and waits until it has killed itself.
func (d *database) die(t *testing.T, role, order string, step int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PAWL_HALF_STEP="+strconv.Itoa(step), "PAWL_HALF_ROLE="+role, "PAWL_HALF_DIALECT="+strconv.Itoa(int(d.dialect)),
		"PAWL_HALF_SOURCE="+d.source, "PAWL_HALF_TABLE="+d.name, "PAWL_HALF_ORDER="+order)
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Errorf("%s at step %d was to be killed: %v: %s", role, step, err, said)
	}
}

// TestKilledBetweenSteps: a producer dies between each two steps, and so does a coordinator that asks about that. In the end the messages
// of committed transactions, and only those, are in the outbox.
func TestKilledBetweenSteps(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		for step := range producerSteps {
			order := fmt.Sprint("order-", step)
			d.die(t, "producer", order, step)
			var id string
			if all, err := d.list(); err != nil || len(all) != min(1, step) && step != producerSteps-1 {
				t.Fatalf("step %d: %v prepared, %v", step, all, err)
			} else if len(all) > 0 {
				id = all[0]
			}
			if step > 0 && step < producerSteps-1 {
				d.die(t, "coordinator", id, step%coordinatorSteps)
			}
			stop := d.run(t, d.ask)
			until(t, "decided", func() bool { return d.decided(t) })
			stop()
		}
		if orders, missing, extra := d.check(t); orders != 2 || missing+extra > 0 {
			t.Errorf("%d orders, %d without a message, %d messages without an order", orders, missing, extra)
		}
	})
}

// list returns the IDs of prepared half messages.
func (d *database) list() (ids []string, err error) {
	rows, err := d.db.Query("SELECT id FROM " + d.name + " WHERE state = 0")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
