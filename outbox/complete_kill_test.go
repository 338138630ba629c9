package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/killtest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// completion reports whether the workers are to end when all messages are done, and not when they are confirmed.
var completion = os.Getenv("PAWL_OUTBOX_RESEND") != ""

// consume reads the broker's file and acknowledges each message before its effect. So a consumer that is killed, or that
// forgets, loses messages. Some replies are lost as well. The effects have an inbox.
func (d *database) consume(ctx context.Context, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		finished := d.finished(ctx)
		var pos int64
		if err := d.db.QueryRowContext(ctx, "SELECT n FROM pos_"+d.name).Scan(&pos); err != nil {
			return err
		}
		text, err := io.ReadAll(io.NewSectionReader(file, pos, 1<<20))
		if err != nil {
			return err
		}
		text = text[:bytes.LastIndexByte(text, '\n')+1]
		if finished && len(text) == 0 {
			return nil
		}
		for line := range bytes.Lines(text) {
			pos += int64(len(line))
			if err := d.try(ctx, "UPDATE pos_"+d.name+" SET n = ?", pos); err != nil {
				return err
			}
			if err := d.consumeOne(ctx, line); err != nil {
				return err
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func (d *database) consumeOne(ctx context.Context, line []byte) error {
	var key, n int
	if _, err := fmt.Sscanf(string(line), "%d %d\n", &key, &n); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	lot := rand.IntN(100)
	if lot < 3 {
		return nil
	}
	for {
		_, err := dialect.InsertIfAbsent(d.dialect, "effects_"+d.name, "k", dialect.Columns{"k": key*1_000_000 + n, "n": 0}).Exec(ctx, d.db)
		if err == nil {
			break
		}
		if !dialect.Again(err) {
			return err
		}
	}
	if lot < 10 {
		return nil
	}
	return d.table.Complete(ctx, d.db, fmt.Sprintf("%d-%d", key, n))
}

// try runs a statement until no other transaction is in the way.
func (d *database) try(ctx context.Context, query string, args ...any) error {
	for {
		if err := d.exec(ctx, d.db, query, args...); !dialect.Again(err) {
			return err
		}
	}
}

// consumed runs producers, relays and a consumer, and kills them. In the end so many messages are lost, because they had no
// effect, and so many are not done.
func (d *database) consumed(t *testing.T, env ...string) (lost, open int) {
	t.Helper()
	for _, query := range []string{"DELETE FROM " + d.name, "DELETE FROM counts_" + d.name, "DELETE FROM effects_" + d.name, "UPDATE pos_" + d.name + " SET n = 0"} {
		if err := d.exec(t.Context(), d.db, query); err != nil {
			t.Fatal(err)
		}
	}
	for key := range killedKeys {
		if err := d.exec(t.Context(), d.db, "INSERT INTO counts_"+d.name+" VALUES (?, 0)", key); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "broker")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	env = append(env, "PAWL_OUTBOX_MESSAGES=600", "PAWL_OUTBOX_DIALECT="+strconv.Itoa(int(d.dialect)), "PAWL_OUTBOX_SOURCE="+d.source, "PAWL_OUTBOX_TABLE="+d.name,
		"PAWL_OUTBOX_FILE="+file, "PAWL_OUTBOX_BEGAN="+strconv.FormatInt(time.Now().UnixMilli(), 10), "PAWL_OUTBOX_STORE=redis://"+testservers.SharedRedis(t).Addr)
	relays := killtest.Start(t, 2, append(env, "PAWL_OUTBOX_WORKER=relay")...)
	producers := killtest.Start(t, 1, append(env, "PAWL_OUTBOX_WORKER=producer")...)
	consumers := killtest.Start(t, 1, append(env, "PAWL_OUTBOX_WORKER=consumer")...)
	done := make(chan int)
	go func() { done <- producers.KillUntilDone(2, 800*time.Millisecond) }()
	go func() { done <- consumers.KillUntilDone(5, 600*time.Millisecond) }()
	kills := relays.KillUntilDone(5, 600*time.Millisecond)
	kills += <-done + <-done
	var produced int
	err := d.db.QueryRowContext(t.Context(), "SELECT (SELECT SUM(n) FROM counts_"+d.name+"), (SELECT SUM(n) FROM counts_"+d.name+
		") - (SELECT COUNT(*) FROM effects_"+d.name+"), (SELECT COUNT(*) FROM "+d.name+" WHERE state <> 3)").Scan(&produced, &lost, &open)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v: killed %d processes; of %d messages %d had no effect, %d are not done", env[0], kills, produced, lost, open)
	return lost, open
}

// TestKilledCompletion: the consumer loses messages and replies, and everything is killed again and again. With Resend
// every committed message has its effect and is done. A relay without Resend is found to lose effects.
func TestKilledCompletion(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		for _, table := range []string{"counts_", "effects_", "pos_"} {
			if err := d.exec(t.Context(), d.db, "CREATE TABLE "+table+d.name+" (k bigint PRIMARY KEY, n bigint NOT NULL)"); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.exec(t.Context(), d.db, "INSERT INTO pos_"+d.name+" VALUES (0, 0)"); err != nil {
			t.Fatal(err)
		}
		if lost, open := d.consumed(t, "PAWL_OUTBOX_RESEND="); lost == 0 || open < lost {
			t.Error("a relay without completion is not found to lose effects")
		}
		if lost, open := d.consumed(t, "PAWL_OUTBOX_RESEND=1s"); lost+open > 0 {
			t.Errorf("%d messages had no effect, %d are not done", lost, open)
		}
	})
}
