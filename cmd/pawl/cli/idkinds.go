package cli

import (
	"context"
	"fmt"

	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/readable"
	"github.com/pawl-go/pawl/id/redisid"
	"github.com/pawl-go/pawl/id/segment"
	"github.com/pawl-go/pawl/id/sequence"
	"github.com/pawl-go/pawl/id/snowflake"
	"github.com/pawl-go/pawl/id/uuids"
)

// idKind is a kind of IDs.
type idKind struct {
	name, short, long string

	named      bool // the IDs of each name are a row of their own
	stored     bool // --store may keep a part of it
	marked     bool // --store has the mark of the counter in --db
	needsDB    bool
	severalDBs bool
	database   string   // the databases that --db may name
	instead    string   // why --store is of no use
	flags      []string // beside -n

	// open returns the lines of a name. parts has the generators' shared parts, and closes all.
	open func(ctx context.Context, parts *idParts, name string) (lines, error)
}

const forgettingHelp = `
A store that may lose its last writes is refused (64), because IDs would repeat: Redis, NATS,
PostgreSQL, MySQL and MariaDB. --allow-forgetting accepts such a store. SQLite, etcd and
ZooKeeper keep their writes. Redlock and row mode have no values, and are always refused.`

const tableHelp = `
With --db the counter is in a table of PostgreSQL, MySQL, MariaDB or SQLite, and not
in the store. The table is made if it is missing. A database that does not flush
its commits is refused (64).`

var idKinds = []idKind{
	{
		name: "uuid4", short: "Print random UUIDs", long: "Print UUIDs of version 4: 122 random bits. These UUIDs have no order.",
		instead: "UUIDs need no store",
		open:    func(context.Context, *idParts, string) (lines, error) { return uuidLines(uuids.V4()), nil },
	},
	{
		name: "uuid7", short: "Print UUIDs that begin with the time", long: "Print UUIDs of version 7: the time in ms and 62 random bits. UUIDs of one run rise.",
		instead: "UUIDs need no store",
		open:    func(context.Context, *idParts, string) (lines, error) { return uuidLines(uuids.V7()), nil },
	},
	{
		name: "snowflake", short: "Print IDs of a time, a worker and a sequence number",
		long: `Print IDs of 63 bits: the time, the number of a worker, and a sequence number. The store gives this
process a worker number of NAME, and keeps the time that was used with that number. So no
clock makes an ID twice. All users of NAME have the same --bits, --unit and --epoch.
"pawl id explain" tells the parts of an ID.` + "\n" + forgettingHelp,
		named: true, stored: true, flags: append(layoutNames[:3:3], flagForgets), open: openSnowflake,
	},
	{
		name: "segment", short: "Print numbers from a counter",
		long: `Print numbers from the counter NAME in the store. Each run reserves as many numbers as
it prints, 10,000 at a time.` + "\n" + tableHelp + "\n" + forgettingHelp,
		named: true, stored: true, database: "a database", flags: []string{flagDB, flagForgets}, open: openSegment,
	},
	{
		name: "sequence", short: "Print numbers from one or more databases",
		long: `Print numbers of NAME from the databases of --db: PostgreSQL, MySQL, MariaDB, SQLite. With
one database the numbers rise. With several, each gives every --step-th number, and a
database that fails or hangs is skipped. The databases and their order are recorded in each
of them, so that a wrong --db or --step is refused (64). To grow, name further databases
after the others, up to --step. Tables are made if they are missing.`,
		named: true, needsDB: true, severalDBs: true, database: "a database",
		instead: "its numbers are in the databases of --db",
		flags:   []string{flagDB, flagStep}, open: openSequence,
	},
	{
		name: "redis", short: "Print numbers from a counter in Redis",
		long: `Print numbers from the counter at the key NAME of the Redis of --db. With --store, or the
variable PAWL_STORE, the store has a mark of NAME. With the mark no number repeats after
Redis was restarted, emptied, restored or replaced. Use a NAME of a store for one Redis only. Without a store there is no mark, and pawl says so.` + "\n" + forgettingHelp,
		named: true, stored: true, marked: true, needsDB: true, database: "a Redis, as redis://127.0.0.1:6379",
		flags: []string{flagDB, flagForgets}, open: openRedisID,
	},
	{
		name: "readable", short: "Print IDs to read and type",
		long: `Print IDs of a template: a prefix, fields, a date, a counter that starts anew each day,
and a check digit. The counter NAME is in the store. Templates have

  {n:7}            the counter with leading zeros, 1 to 18 digits
  {date:20060102}  the day, in --zone
  {time}           the time of the day to the ms
  {field:user:4}   4 characters of --field user=VALUE
  {digit}          a check digit; {check} has two digits, {check:36} one letter or digit

All users of NAME have the same --zone.` + "\n" + tableHelp + "\n" + forgettingHelp,
		named: true, stored: true, database: "a database",
		flags: []string{flagTemplate, flagZone, flagField, flagDB, flagForgets}, open: openReadable,
	},
}

// checkName checks a name without a store. Package redisid checks a key of Redis.
func (k idKind) checkName(name string) error {
	if !k.named || k.marked && name != "" {
		return nil
	}
	return id.CheckName(name)
}

func openSnowflake(ctx context.Context, p *idParts, name string) (lines, error) {
	layout, err := p.o.layout.layout()
	if err != nil {
		return nil, err
	}
	marks, err := p.values(ctx)
	if err != nil {
		return nil, err
	}
	g, err := snowflake.New(ctx, p.client, marks, name, &snowflake.Options{Layout: layout, Observe: func(e snowflake.Event) {
		switch {
		case e.Err != nil:
			complain(fmt.Errorf("snowflake %q: worker %d: %w", name, e.Worker, e.Err))
		case e.Lead > 0:
			complain(fmt.Errorf("snowflake %q: the times of worker %d are %v ahead of the clock: IDs go on from there", name, e.Worker, e.Lead))
		}
	}})
	if err != nil {
		return nil, err
	}
	p.atEnd(g.Close)
	return numberLines(g), nil
}

func openSegment(ctx context.Context, p *idParts, name string) (lines, error) {
	registers, err := p.registers(ctx)
	if err != nil {
		return nil, err
	}
	if !p.o.serving { // else the end would waste the numbers loaded ahead
		return numberLines(id.NewStrict(registers.Counter(name))), nil
	}
	g, err := segment.New(registers.Counter(name), nil)
	if err != nil {
		return nil, err
	}
	p.atEnd(g.Close)
	return numberLines(g), nil
}

func openSequence(ctx context.Context, p *idParts, name string) (lines, error) {
	if err := p.openDatabases(); err != nil {
		return nil, err
	}
	var all []sequence.Database
	for _, d := range p.databases {
		all = append(all, sequence.Database{DB: d.DB, Dialect: d.Dialect})
	}
	g, err := sequence.New(ctx, all, name, &sequence.Options{Step: p.o.step, Timeout: answerWithin})
	if err != nil {
		return nil, err
	}
	p.atEnd(g.Close)
	return numberLines(g), nil
}

func openRedisID(ctx context.Context, p *idParts, name string) (lines, error) {
	if p.redis == nil {
		client, err := open.OpenRedis(ctx, p.o.dbs[0])
		if err != nil {
			return nil, fmt.Errorf("--db: %w", err)
		}
		p.redis = client
		p.atEnd(func(context.Context) error { client.Close(); return nil })
		if !p.o.store.chosen() {
			complain(errNoMark)
		}
	}
	opts := &redisid.Options{}
	if p.o.store.chosen() {
		marks, err := p.values(ctx)
		if err != nil {
			return nil, err
		}
		opts.Mark = marks.Mark(name)
	}
	counter, err := redisid.New(p.redis, name, opts)
	if err != nil {
		return nil, err
	}
	p.atEnd(counter.Close)
	return numberLines(id.NewStrict(counter)), nil
}

func openReadable(ctx context.Context, p *idParts, name string) (lines, error) {
	zone, err := p.o.template.location()
	if err != nil {
		return nil, err
	}
	registers, err := p.registers(ctx)
	if err != nil {
		return nil, err
	}
	days, err := readable.NewDaily(registers, name)
	if err != nil {
		return nil, err
	}
	format, err := readable.New(p.o.template.text, &readable.Options{Counter: days.Generator, Zone: zone})
	if err != nil {
		return nil, err
	}
	p.atEnd(format.Close)
	g, err := format.Generator(p.o.fieldValues)
	if err != nil {
		return nil, err
	}
	return textLines(g), nil
}
