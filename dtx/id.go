package dtx

import (
	"fmt"
	"strings"

	"github.com/pawl-go/pawl"
)

// ID names a transaction: the log, the coordinator's row in it, and a number of that coordinator. No ID is used twice.
type ID struct {
	log, coordinator, number int64
}

// String returns the ID as text of at most 55 ASCII letters, digits and hyphens. Branches have this name in their databases.
func (id ID) String() string {
	return fmt.Sprintf("%s%x-%x", prefix(id.log), id.coordinator, id.number)
}

// prefix is the beginning of the names of all transactions of a log.
func prefix(log int64) string { return fmt.Sprintf("pawl-%x-", log) }

// ParseID reads the text of an ID.
func ParseID(text string) (ID, error) {
	var id ID
	n, err := fmt.Sscanf(strings.ReplaceAll(text, "-", " "), "pawl %x %x %x", &id.log, &id.coordinator, &id.number)
	if n != 3 || err != nil || id.String() != text {
		return ID{}, fmt.Errorf("dtx: %w: %.80q is no ID of a transaction", pawl.ErrInvalid, text)
	}
	return id, nil
}

// branchID is a branch of a transaction.
type branchID struct {
	ID
	branch int
}

// parseBranch reads what postgres and mariadb call a branch: the ID, a hyphen and the number.
func parseBranch(name string) (b branchID, ok bool) {
	at := strings.LastIndexByte(name, '-')
	if at < 0 {
		return b, false
	}
	id, err := ParseID(name[:at])
	if err != nil {
		return b, false
	}
	_, err = fmt.Sscanf(name[at+1:], "%x", &b.branch)
	b.ID = id
	return b, err == nil && b.String() == name
}

// String is the name of the branch.
func (b branchID) String() string { return fmt.Sprintf("%v-%x", b.ID, b.branch) }
