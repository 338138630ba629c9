package id

import (
	"context"
	"fmt"
	"strconv"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// ValuesOptions are the settings of [Values].
type ValuesOptions struct {
	// AllowForgetting accepts a store that may lose its last writes: Redis, NATS, PostgreSQL, MySQL
	// and MariaDB. A Redis or NATS does that when it restarts without them. A Redis or a database
	// does that when a replica that lags behind takes over. IDs that were made under lost writes repeat then.
	// Set it where that cannot happen, because the store has no such replica and is never restored;
	// or where it is known by other means.
	AllowForgetting bool
}

// Values returns the marks and counters that are versioned values of the client's store. The
// store has to have versioned values and to keep what it acknowledged; another store is
// refused by [pawl.ErrUnsupported] with the reason, see [ValuesOptions]. The memory engine
// keeps them for as long as the engine lives. Nil opts are the defaults.
//
// The values have the names "id/mark/NAME" and "id/counter/NAME", which nobody else should
// write or delete. A number is stored as decimal text.
func Values(client *pawl.Client, opts *ValuesOptions) (Registers, error) {
	caps := client.Caps()
	if err := caps.RefuseFeature(engine.FeatureValues); err != nil {
		return nil, fmt.Errorf("marks and counters: %w", err)
	}
	why := ""
	switch {
	case opts != nil && opts.AllowForgetting:
	case caps.Forgets:
		why = "the store may lose its last writes in a restart"
	case caps.Failover == engine.FailoverLoses:
		why = "a replica that takes over may not know the last writes"
	}
	if why != "" {
		return nil, fmt.Errorf("%w: marks and counters on %s: %s, and then IDs repeat; ValuesOptions.AllowForgetting accepts that",
			pawl.ErrUnsupported, caps.Name, why)
	}
	return values{client}, nil
}

type values struct{ client *pawl.Client }

func (v values) Mark(name string) Mark { return valueMark{newRegister(v.client, "mark", name)} }

func (v values) Counter(name string) Counter {
	return valueCounter{newRegister(v.client, "counter", name)}
}

// register is a value that is a number.
type register struct {
	value *pawl.Value
	err   error // the mistake in its name
}

func newRegister(client *pawl.Client, kind, name string) register {
	r := register{err: CheckName(name)}
	if r.err == nil {
		r.value = client.Value("id/" + kind + "/" + name)
	}
	return r
}

func (r register) parse(v pawl.Snapshot) (Reading, error) {
	if v.Number == 0 {
		return Reading{}, nil
	}
	is, err := strconv.ParseInt(string(v.Data), 10, 64)
	if err != nil || is < 1 {
		return Reading{}, fmt.Errorf("value %q holds %.40q, which is no number from 1 on: another program wrote it", r.value.Name(), v.Data)
	}
	return Reading{is, v.Number}, nil
}

type valueMark struct{ register }

func (m valueMark) Load(ctx context.Context) (Reading, error) {
	if m.err != nil {
		return Reading{}, m.err
	}
	is, err := m.value.Get(ctx)
	if err != nil {
		return Reading{}, err
	}
	return m.parse(is)
}

func (m valueMark) Raise(ctx context.Context, to int64, from Reading) (Reading, error) {
	if m.err != nil {
		return Reading{}, m.err
	}
	if err := CheckRaise(to, from); err != nil {
		return Reading{}, err
	}
	return m.write(ctx, to, from)
}

// Settle implements [Settler].
func (m valueMark) Settle(ctx context.Context, to int64, from Reading) error {
	if m.err != nil {
		return m.err
	}
	if err := CheckSettle(to, from); err != nil {
		return err
	}
	_, err := m.write(ctx, to, from)
	return err
}

func (m valueMark) write(ctx context.Context, to int64, from Reading) (Reading, error) {
	is, err := m.value.Put(ctx, strconv.AppendInt(nil, to, 10), from.Version)
	if err != nil {
		return Reading{}, err
	}
	return Reading{to, is.Number}, nil
}

// valueCounter leaves the loop to the value, whose updates queue when they are many.
type valueCounter struct{ register }

func (c valueCounter) Add(ctx context.Context, n int64) (last int64, err error) {
	if c.err != nil {
		return 0, c.err
	}
	if err := CheckAdd(n); err != nil {
		return 0, err
	}
	_, err = c.value.Update(ctx, func(v pawl.Snapshot) ([]byte, error) {
		is, err := c.parse(v)
		if err == nil {
			last, err = plus(is.Value, n)
		}
		return strconv.AppendInt(nil, last, 10), err
	})
	if err != nil {
		return 0, err
	}
	return last, nil
}
