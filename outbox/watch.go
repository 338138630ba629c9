package outbox

import (
	"math"
	"strconv"
	"strings"
)

// watch finds from where on a page of PostgreSQL may have brought messages whose predecessors were not visible when their
// place was read. Numbers are given at the insert, and not at the commit. A transaction that a snapshot shows as in progress took
// its numbers after the snapshot before that. While the transaction is open, in doubt or not, its numbers do not matter.
type watch struct {
	open   map[uint64]int64 // transactions in progress at the last page: their numbers are larger than this
	newest [2]int64         // the largest number that was seen before the last page but one, and before the last page
	floor  int64            // messages that became visible behind the reader since the last question have larger numbers
}

// look takes the snapshot of a page, and the largest number that was seen before the page. Messages that have become visible
// behind the reader have a number above floor, until asked is called. The floor is two pages old at least, because a
// transaction takes its first number a moment before a snapshot can show the transaction.
func (w *watch) look(seen string, newest int64) {
	least, active := parseSnapshot(seen)
	w.floor = min(w.floor, w.newest[0])
	for id, number := range w.open {
		if id < least || !active[id] {
			w.floor = min(w.floor, number)
			delete(w.open, id)
		}
	}
	if w.open == nil {
		w.open = make(map[uint64]int64)
	}
	for id := range active {
		if _, known := w.open[id]; !known {
			w.open[id] = w.newest[0]
		}
	}
	w.newest = [2]int64{w.newest[1], newest}
}

// asked says that the table was asked for the messages of all keys above the floor.
func (w *watch) asked() { w.floor = math.MaxInt64 }

// parseSnapshot reads a snapshot as PostgreSQL writes it: "10:20:10,14" has all transactions below 10 ended, and 10 and 14 in progress.
func parseSnapshot(seen string) (least uint64, active map[uint64]bool) {
	parts := strings.Split(seen, ":")
	active = make(map[uint64]bool)
	if len(parts) != 3 {
		return 0, active
	}
	for id := range strings.SplitSeq(parts[2], ",") {
		if n, err := strconv.ParseUint(id, 10, 64); err == nil {
			active[n] = true
		}
	}
	least, _ = strconv.ParseUint(parts[0], 10, 64) //nolint:errcheck // the database wrote it
	return least, active
}
