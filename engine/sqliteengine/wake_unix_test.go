//go:build unix

package sqliteengine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pawl-go/pawl/internal/sqlengine"
)

// A process that is stopped does not read its inbox. Nobody waits for it.
func TestFullInbox(t *testing.T) {
	d := dialect{path: filepath.Join(t.TempDir(), "pawl.db")}
	if err := os.Mkdir(d.inbox(""), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := makePipe(d.inbox("stopped")); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(d.inbox("stopped"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	for range 10_000 { // 64 KiB fit
		d.Post(sqlengine.Message{Session: "stopped", Claim: "claim", Token: 1})
	}
}
