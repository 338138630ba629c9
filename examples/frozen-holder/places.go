package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/httpfence"
	"github.com/pawl-go/pawl/fence/redisfence"
	"github.com/pawl-go/pawl/fence/sqlfence"
)

// Places are where reports are written to.
type Places struct {
	SQL    string // a file
	HTTP   string // a URL
	Redis  string // a URL; empty: none
	Prefix string // of keys in Redis
}

// place has two reports: a guard protects the first, and no guard the second.
type place interface {
	name() string
	prepare(ctx context.Context) error
	write(ctx context.Context, guarded bool, text string, token fence.Token) error
	read(ctx context.Context, guarded bool) (string, error)
	close()
}

type places []place

func (p Places) open(ctx context.Context) (places, error) {
	db, err := sql.Open("sqlite3", "file:"+p.SQL+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	all := places{&database{db}, &web{p.HTTP, &http.Client{Transport: &httpfence.Transport{}}}}
	if p.Redis == "" {
		return all, nil
	}
	options, err := rueidis.ParseURL(p.Redis)
	if err != nil {
		all.close()
		return nil, errors.New("the URL of Redis cannot be read") // the error may repeat a password
	}
	options.DisableCache = true
	client, err := rueidis.NewClient(options)
	if err != nil {
		all.close()
		return nil, fmt.Errorf("redis: %w", err)
	}
	guard, err := redisfence.New(client, &redisfence.Options{Prefix: p.Prefix + "mark:", Keep: kept})
	return append(all, &redis{client, guard, p.Prefix}), err
}

// write writes to every report, first the one without a guard, and returns what
// came of each.
func (all places) write(ctx context.Context, text string, token fence.Token) (came []error) {
	for _, p := range all {
		for _, guarded := range []bool{false, true} {
			came = append(came, p.write(ctx, guarded, text, token))
		}
	}
	return came
}

func (all places) close() {
	for _, p := range all {
		p.close()
	}
}

// database is a table with a row for each report.
type database struct{ db *sql.DB }

func (d *database) name() string { return "SQL" }

func (d *database) prepare(ctx context.Context) error {
	_, err := d.db.ExecContext(ctx, `
		CREATE TABLE report (guarded INTEGER PRIMARY KEY, text TEXT NOT NULL, fence INTEGER NOT NULL DEFAULT 0);
		INSERT INTO report (guarded, text) VALUES (0, ''), (1, '')`)
	return err
}

func (d *database) write(ctx context.Context, guarded bool, text string, token fence.Token) error {
	if !guarded {
		_, err := d.db.ExecContext(ctx, `UPDATE report SET text = ? WHERE guarded = 0`, text)
		return err
	}
	report := sqlfence.Table{Dialect: sqlfence.SQLite, Name: "report"}
	return report.UpdateIfNotOlder(ctx, d.db, sqlfence.Columns{"guarded": 1}, token, sqlfence.Columns{"text": text})
}

func (d *database) read(ctx context.Context, guarded bool) (text string, err error) {
	err = d.db.QueryRowContext(ctx, `SELECT text FROM report WHERE guarded = ?`, guarded).Scan(&text)
	return text, err
}

func (d *database) close() { d.db.Close() }

// web is a server with a path for each report.
type web struct {
	url    string
	client *http.Client
}

func path(guarded bool) string {
	if guarded {
		return "/guarded"
	}
	return "/bare"
}

// serve starts the server. Behind the guard and beside it is the same handler.
func serve() *httptest.Server {
	var reports sync.Map
	report := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			text, _ := reports.Load(r.URL.Path)
			fmt.Fprint(w, text)
			return
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reports.Store(r.URL.Path, string(text))
	})
	mux := http.NewServeMux()
	mux.Handle(path(false), report)
	mux.Handle(path(true), httpfence.Handler(report, new(fence.Memory), writes, nil))
	return httptest.NewServer(mux)
}

// writes names what a request writes to.
func writes(r *http.Request) string {
	if r.Method == http.MethodGet {
		return ""
	}
	return r.URL.Path
}

func (w *web) name() string { return "HTTP" }

func (w *web) prepare(context.Context) error { return nil }

func (w *web) write(ctx context.Context, guarded bool, text string, token fence.Token) error {
	_, err := w.do(fence.WithToken(ctx, "report", token), http.MethodPut, guarded, text)
	return err
}

func (w *web) read(ctx context.Context, guarded bool) (string, error) {
	return w.do(ctx, http.MethodGet, guarded, "")
}

func (w *web) do(ctx context.Context, method string, guarded bool, text string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, w.url+path(guarded), strings.NewReader(text))
	if err != nil {
		return "", err
	}
	reply, err := w.client.Do(r)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if reply.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", reply.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}

func (w *web) close() { w.client.CloseIdleConnections() }

// kept is how long what this program leaves in Redis stays there.
const kept = time.Hour

var setAndExpire = redisfence.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])`)

// redis has a key for each report.
type redis struct {
	client rueidis.Client
	guard  *redisfence.Guard
	prefix string
}

func (r *redis) key(guarded bool) string { return r.prefix + path(guarded) }

func (r *redis) name() string { return "Redis" }

func (r *redis) prepare(context.Context) error { return nil }

func (r *redis) write(ctx context.Context, guarded bool, text string, token fence.Token) error {
	if !guarded {
		return r.client.Do(ctx, r.client.B().Set().Key(r.key(false)).Value(text).Ex(kept).Build()).Error()
	}
	_, err := r.guard.Run(ctx, setAndExpire, r.key(true), token, []string{r.key(true)}, []string{text, strconv.Itoa(int(kept.Seconds()))})
	return err
}

func (r *redis) read(ctx context.Context, guarded bool) (string, error) {
	return r.client.Do(ctx, r.client.B().Get().Key(r.key(guarded)).Build()).ToString()
}

func (r *redis) close() { r.client.Close() }
