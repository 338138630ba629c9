package mysqlengine_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
)

// xtradb is a server of Percona XtraDB Cluster 8, which has wsrep_on in each session, and nowhere else.
type xtradb struct{ driver.Connector }

func (x xtradb) Connect(context.Context) (driver.Conn, error) { return xtradbConn{}, nil }

type xtradbConn struct{ driver.Conn }

func (xtradbConn) Close() error { return nil }

func (xtradbConn) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	switch {
	case strings.HasPrefix(query, "SHOW VARIABLES "):
		return &setting{"wsrep_on", "ON"}, nil
	case strings.HasPrefix(query, "SHOW GLOBAL VARIABLES "):
		return &setting{}, nil
	}
	return nil, errors.New("the setting was not seen")
}

// setting is an answer of at most one line.
type setting []driver.Value

func (s *setting) Columns() []string { return []string{"Variable_name", "Value"} }
func (s *setting) Close() error      { return nil }

func (s *setting) Next(line []driver.Value) error {
	if len(*s) == 0 {
		return io.EOF
	}
	copy(line, *s)
	*s = nil
	return nil
}

// TestSettingOfASession: row mode is refused also where only a session tells that several servers take writes.
func TestSettingOfASession(t *testing.T) {
	db := sql.OpenDB(xtradb{})
	defer db.Close()
	if _, err := mysqlengine.NewRow(t.Context(), db, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "wsrep_on") {
		t.Error(err)
	}
}
