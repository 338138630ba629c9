package idprocesstest

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/sqlmark"
	"github.com/pawl-go/pawl/internal/idtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// task is what the test tells a process, as JSON in the variable beProcess.
type task struct {
	Postgres, MariaDB, Etcd, Redis string // addresses
	Number                         int
	Skew                           time.Duration // of its clock when it starts
	Pause                          time.Duration // of a goroutine that does not wait for a store
}

// process is a process that makes IDs of all kinds until it is killed.
type process struct {
	task
	began             time.Time
	postgres, mariadb *sql.DB

	mu        sync.Mutex
	client    *pawl.Client // of etcd
	registers id.Registers
}

const beProcess = "PAWL_BE_PROCESS_OF_IDS"

const (
	goroutines = 4
	frameIDs   = 255 // with the header as many bytes as a pipe takes whole, so no frame is cut by a kill
	storePause = 20 * time.Millisecond
)

// work makes IDs and ends with the first error.
func work(text string) error {
	p := &process{began: time.Now()}
	if err := json.Unmarshal([]byte(text), &p.task); err != nil {
		return err
	}
	connector, err := mysql.NewConnector(testservers.MariaDBConfig(p.MariaDB))
	if err != nil {
		return err
	}
	p.mariadb = sql.OpenDB(connector)
	if p.postgres, err = sql.Open("pgx", testservers.PostgresURL(p.Postgres)); err != nil {
		return err
	}
	p.mariadb.SetMaxOpenConns(8)
	p.postgres.SetMaxOpenConns(8)
	ended := make(chan error)
	for i := range kinds {
		go func() { ended <- p.make(i) }()
	}
	return <-ended
}

// steps is how the clock is set while a process runs, once in a while.
var steps = []time.Duration{0, -500 * time.Millisecond, 30 * time.Minute, -time.Second, -29 * time.Minute}

// clock is set back and forth, by up to an hour in all.
func (p *process) clock() time.Time {
	running := time.Since(p.began)
	return p.began.Add(running + p.Skew + steps[int(running/(300*time.Millisecond))%len(steps)])
}

func (p *task) redis() (rueidis.Client, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{p.Redis}, DisableCache: true})
	if err != nil {
		return nil, errors.Join(pawl.ErrUnavailable, err)
	}
	return client, nil
}

// values are marks and counters in etcd.
func (p *process) values(ctx context.Context) (*pawl.Client, id.Registers, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client != nil {
		return p.client, p.registers, nil
	}
	eng, err := open.Open(ctx, "etcd://"+p.Etcd)
	if err != nil {
		return nil, nil, err
	}
	client, err := pawl.New(ctx, eng, &pawl.Options{TTL: 2 * time.Second})
	if err != nil {
		return nil, nil, errors.Join(err, eng.Close())
	}
	p.client = client
	p.registers, err = id.Values(client, nil)
	return p.client, p.registers, err
}

// marks are those of a database.
func marks(ctx context.Context, db *sql.DB, d dialect.Dialect) (id.Registers, error) {
	r, err := sqlmark.New(db, d, nil)
	if err != nil {
		return nil, err
	}
	return r, r.Create(ctx)
}

// make makes IDs of one kind by some goroutines.
func (p *process) make(which int) error {
	k := kinds[which]
	var next source
	err := patiently(func(ctx context.Context) (err error) { next, err = k.open(ctx, p); return err })
	if err != nil {
		return fmt.Errorf("%s: begin: %w", k.name, err)
	}
	ended := make(chan error)
	for g := range goroutines {
		go func() { ended <- p.write(which, g, next) }()
	}
	return fmt.Errorf("%s: %w", k.name, <-ended)
}

// patiently calls a function again while a store is away.
func patiently(f func(context.Context) error) error {
	for ; ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := f(ctx)
		late := ctx.Err() != nil
		cancel()
		if err == nil || !errors.Is(err, pawl.ErrUnavailable) && !late {
			return err
		}
	}
}

// write writes the IDs of one goroutine to the test.
func (p *process) write(which, goroutine int, next source) error {
	size, pause := frameIDs, p.Pause
	switch k := kinds[which]; {
	case k.naive:
		size, pause = 10, storePause
	case k.atStore:
		size, pause = []int{1, 7, 50, 200}[goroutine], storePause
	}
	for ids := make([]idtest.ID, size); ; time.Sleep(pause) {
		var n int
		err := patiently(func(ctx context.Context) (err error) {
			n, err = next(ctx, ids)
			return errors.Join(err, writeFrame(which, goroutine, ids[:n]))
		})
		if err != nil {
			return err
		}
	}
}

// A frame is the numbers of the kind, the goroutine and how many IDs there are, and the IDs.
func writeFrame(which, goroutine int, ids []idtest.ID) error {
	frame := binary.BigEndian.AppendUint64(nil, uint64(which)<<32|uint64(goroutine))
	frame = binary.BigEndian.AppendUint64(frame, uint64(len(ids)))
	for _, is := range ids {
		frame = binary.BigEndian.AppendUint64(frame, is.High)
		frame = binary.BigEndian.AppendUint64(frame, is.Low)
	}
	_, err := os.Stdout.Write(frame)
	return err
}
