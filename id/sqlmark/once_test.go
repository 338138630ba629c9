package sqlmark_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/internal/sqltest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// A mark that was raised, and whose answer is lost, is no conflict. In the simple protocol a pool would send the statement again, and find its
// own version. The row is locked until the network loses answers.
func TestLostAnswerIsNoConflict(t *testing.T) {
	server := testservers.SharedPostgres(t).Addr
	network := proxy.New(t, server)
	direct, table := postgres(t, server, pgx.QueryExecModeExec), "lost_answers"
	defer exec(t, direct, drop(dialect.PostgreSQL, table))
	all := registers(t, postgres(t, network.Addr, pgx.QueryExecModeSimpleProtocol), dialect.PostgreSQL, table)
	if err := all.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := all.Mark("it")
	first, err := mark.Raise(t.Context(), 1, id.Reading{})
	if err != nil {
		t.Fatal(err)
	}
	err = sqltest.LostAnswer(t, direct, "UPDATE "+table+" SET n = n", `UPDATE "`+table+`"%`, network.FreezeReplies, network.Thaw,
		func() { sqltest.Until(t, direct, "SELECT COUNT(*) FROM "+table+" WHERE n = 2") },
		func() error { _, err := mark.Raise(t.Context(), 2, first); return err })
	if !errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrConflict) {
		t.Error(err)
	}
}
