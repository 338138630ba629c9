package sequence_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/sequence"
	"github.com/pawl-go/pawl/internal/idtest"
)

// TestClientsAtOnce: clients that make a set at the same time agree on it, and share its numbers.
func TestClientsAtOnce(t *testing.T) {
	databases, opts := three(t), sequence.Options{Step: 5, Table: newTable(), Timeout: patience}
	var check idtest.Checker[int64]
	check.Unordered = true
	var places sync.Map
	var group sync.WaitGroup
	for range 4 {
		mine := databases()
		logs := []*idtest.Log[int64]{check.Log(), check.Log()}
		group.Go(func() {
			s, err := sequence.New(t.Context(), mine, "orders", &opts)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close(context.Background()) //nolint:errcheck // nothing is under way
			var both sync.WaitGroup
			for g, log := range logs {
				both.Go(func() {
					for range 40 {
						dst := make([]int64, 1+9*g)
						if n, err := s.NextN(t.Context(), dst); err != nil || n != len(dst) {
							t.Error(n, err)
							return
						}
						log.Add(dst...)
						places.Store(dst[0]%5, true)
					}
				})
			}
			both.Wait()
		})
	}
	group.Wait()
	if n, err := check.Check(); err != nil || n != 4*40*11 {
		t.Error(n, err)
	}
	for place := range int64(5) {
		if _, ok := places.Load(place); ok != (place >= 1 && place <= 3) {
			t.Errorf("numbers of place %d: %t", place, ok)
		}
	}
}

// TestOneDatabase: numbers rise over all processes, without a gap where nothing is in the way.
func TestOneDatabase(t *testing.T) {
	for i, d := range three(t)() {
		t.Run(d.Dialect.String(), func(t *testing.T) {
			databases := three(t)
			if d.Dialect == dialect.SQLite {
				databases = files(t, 3)
			}
			table := newTable()
			a, b := open(t, databases()[i:i+1], sequence.Options{Table: table}), open(t, databases()[i:i+1], sequence.Options{Table: table})
			for want := int64(1); want <= 20; want += 2 {
				if x, y := next(t, a), next(t, b); x != want || y != want+1 {
					t.Fatalf("%d, %d; want %d", x, y, want)
				}
			}
			var check idtest.Checker[int64]
			var group sync.WaitGroup
			for range 8 {
				log := check.Log()
				group.Go(func() {
					for range 25 {
						n, err := a.Next(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						log.Add(n)
					}
				})
			}
			group.Wait()
			if n, err := check.Check(); err != nil || n != 200 {
				t.Error(n, err)
			}
			if n := next(t, b); n != 221 {
				t.Errorf("%d after 220", n)
			}
		})
	}
}

// TestRefusedBeforeAnythingIsWritten: one clear error, and no table is there afterwards.
func TestRefusedBeforeAnythingIsWritten(t *testing.T) {
	memory, err := sql.Open("sqlite3", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	two := files(t, 2)
	shaped := files(t, 2)()
	exec(t, shaped[1], "CREATE TABLE bad (name TEXT PRIMARY KEY)")
	exec(t, shaped[1], "CREATE TABLE other_n (name TEXT PRIMARY KEY)")
	for part, row := range map[string]struct {
		databases []sequence.Database
		name      string
		opts      sequence.Options
		class     error
	}{
		"Step 0: 2 to 1000000 are allowed for 2 databases":  {two(), "x", sequence.Options{}, pawl.ErrInvalid},
		"Step 1: 2 to 1000000":                              {two(), "x", sequence.Options{Step: 1}, pawl.ErrInvalid},
		"Step -1: 1 to 1000000":                             {two()[:1], "x", sequence.Options{Step: -1}, pawl.ErrInvalid},
		"Step 1000001":                                      {two(), "x", sequence.Options{Step: 1_000_001}, pawl.ErrInvalid},
		"Timeout 1ms: 10ms to 1m":                           {two(), "x", sequence.Options{Step: 2, Timeout: time.Millisecond}, pawl.ErrInvalid},
		"0 databases":                                       {nil, "x", sequence.Options{Step: 2}, pawl.ErrInvalid},
		"the name has 0 bytes":                              {two(), "", sequence.Options{Step: 2}, pawl.ErrInvalid},
		"the name has 161 bytes: 1 to 160":                  {two(), strings.Repeat("x", 161), sequence.Options{Step: 2}, pawl.ErrInvalid},
		"control character":                                 {two(), "a\nb", sequence.Options{Step: 2}, pawl.ErrInvalid},
		"bad name of a table":                               {two(), "x", sequence.Options{Step: 2, Table: "a;b"}, pawl.ErrInvalid},
		"database 2: DB is nil":                             {append(two()[:1], sequence.Database{Dialect: dialect.SQLite}), "x", sequence.Options{Step: 2}, pawl.ErrInvalid},
		"it has to be PostgreSQL, MySQL or SQLite":          {[]sequence.Database{{DB: memory}}, "x", sequence.Options{}, pawl.ErrInvalid},
		"the database is in memory":                         {[]sequence.Database{{DB: memory, Dialect: dialect.SQLite}}, "x", sequence.Options{}, pawl.ErrUnsupported},
		"database 2: mismatch: table bad has another shape": {shaped, "x", sequence.Options{Step: 2, Table: "bad"}, pawl.ErrMismatch},
		"table other_n has another shape":                   {shaped, "x", sequence.Options{Step: 2, Table: "other"}, pawl.ErrMismatch},
	} {
		_, err := sequence.New(t.Context(), row.databases, row.name, &row.opts)
		if !errors.Is(err, row.class) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
	for _, d := range append(two(), shaped[0]) {
		var n int
		if err := d.DB.QueryRow("SELECT count(*) FROM sqlite_schema").Scan(&n); err != nil || n > 0 {
			t.Errorf("%d tables are there, %v", n, err)
		}
	}
}

// TestAnotherSet: a database at another place, with another step or of another set is
// refused, named by its place. So is a database that was emptied.
func TestAnotherSet(t *testing.T) {
	databases, opts := files(t, 5)(), sequence.Options{Step: 4, Table: "seq"}
	a, b, c, d, e := databases[0], databases[1], databases[2], databases[3], databases[4]
	next(t, open(t, []sequence.Database{a, b}, opts))
	next(t, open(t, []sequence.Database{d, e}, opts))
	for part, row := range map[string]struct {
		databases []sequence.Database
		step      int64
	}{
		"it is at place 2 of its set, not 1":             {[]sequence.Database{b, a}, 4},
		"database 1: its set has step 4, not 5":          {[]sequence.Database{a, b}, 5},
		"database 2: it belongs to another set":          {[]sequence.Database{a, e}, 4},
		"it is at place 1 of its set, not 2":             {[]sequence.Database{a, d}, 4},
		"database 2: it is in no set, and another":       {[]sequence.Database{a, c}, 4},
		"database 1: it is in no set, and another":       {[]sequence.Database{c, b}, 4},
		"database 3: it is at place 1 of its set, not 3": {[]sequence.Database{a, b, a}, 4},
		"databases 1 and 2 are the same":                 {[]sequence.Database{c, c}, 4},
	} {
		_, err := try(t, row.databases, sequence.Options{Step: row.step, Table: "seq"})
		if class := err; !errors.Is(class, pawl.ErrMismatch) && !errors.Is(class, pawl.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
	s := open(t, []sequence.Database{a, b}, opts)
	exec(t, b, "DELETE FROM seq_n")
	before := int64(0)
	until(t, "the second is refused", func() bool {
		n := next(t, s)
		if n%4 == 1 {
			before = max(before, n)
		}
		return n%4 == 1 && !s.States()[1].Good
	})
	if err := s.States()[1].Err; !errors.Is(err, pawl.ErrMismatch) || !strings.Contains(err.Error(), "is gone") {
		t.Error(err)
	}
	if n := next(t, s); n != before+4 {
		t.Errorf("%d after %d", n, before)
	}
}

// TestGrow: a set grows by databases behind the old ones, while clients go on that know only
// these. One place is one database, whichever client enlarges the set.
func TestGrow(t *testing.T) {
	databases, opts := files(t, 4), sequence.Options{Step: 3, Table: "seq"}
	old := open(t, databases()[:2], opts)
	var check idtest.Checker[int64]
	check.Unordered = true
	log := check.Log()
	log.Add(next(t, old))
	var group sync.WaitGroup
	results := make([]error, 2)
	for i := range results {
		all := databases()
		all[2] = all[2+i] // they do not agree on the third
		group.Go(func() {
			s, err := sequence.New(t.Context(), all[:3], "orders", &sequence.Options{Step: 3, Table: "seq", Timeout: patience})
			if results[i] = err; err == nil {
				defer s.Close(context.Background()) //nolint:errcheck // nothing is under way
				for range 9 {
					log.Add(next(t, s))
				}
			}
		})
	}
	group.Wait()
	if (results[0] == nil) == (results[1] == nil) || !errors.Is(errors.Join(results...), pawl.ErrMismatch) {
		t.Error(results)
	}
	for range 6 {
		log.Add(next(t, old), next(t, open(t, databases()[:2], opts)))
	}
	if n, err := check.Check(); err != nil || n != 1+9+12 {
		t.Error(n, err)
	}
	if _, err := try(t, databases(), opts); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("four with step 3: %v", err)
	}
}

// TestEnd: after the last number of each database there is an error, and never a negative number.
func TestEnd(t *testing.T) {
	databases := files(t, 2)()
	s := open(t, databases, sequence.Options{Step: 1000, Table: "seq"})
	next(t, s)
	for _, d := range databases {
		exec(t, d, "UPDATE seq_n SET n = 9223372036854774") // the last number of the first ends in 775001
	}
	var last int64
	for range 6 {
		n, err := s.Next(t.Context())
		if err == nil && n <= 0 {
			t.Fatal(n)
		}
		if err != nil {
			if !errors.Is(err, id.ErrExhausted) || errors.Is(err, pawl.ErrUnavailable) {
				t.Error(err)
			}
			break
		}
		last = max(last, n)
	}
	if last != math.MaxInt64-805 { // ...775002 of the second
		t.Errorf("the last is %d, %d before the end", last, math.MaxInt64-last)
	}
}

// TestCtxAndClose: a call whose ctx ended asks nothing, a NextN of nothing either, and after
// Close there is an error.
func TestCtxAndClose(t *testing.T) {
	s := open(t, files(t, 1)(), sequence.Options{Table: "seq"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := s.Next(ctx); n != 0 || !errors.Is(err, context.Canceled) {
		t.Error(n, err)
	}
	if n, err := s.NextN(ctx, nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	dst := make([]int64, 1000)
	if n, err := s.NextN(t.Context(), dst); n != 1000 || err != nil || dst[0] != 1 || dst[999] != 1000 {
		t.Error(n, err, dst[0], dst[999])
	}
	for range 20 {
		if err := s.Close(ctx); err != nil { // nothing goes on
			t.Fatal(err)
		}
	}
	if n, err := s.Next(t.Context()); n != 0 || !errors.Is(err, pawl.ErrClosed) {
		t.Error(n, err)
	}
}
