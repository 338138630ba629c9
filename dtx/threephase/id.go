package threephase

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pawl-go/pawl"
)

// ID names a transaction: the agent that began it, that agent's log, and a number. No ID is used twice.
type ID struct {
	agent       string
	log, number int64
}

const (
	maxLog    = 1<<40 - 1
	maxNumber = 1<<52 - 1
)

var agentNames = regexp.MustCompile(`^[A-Za-z0-9_]{1,16}$`)

// String returns the ID as text of at most 41 ASCII letters, digits, underscores and hyphens.
func (id ID) String() string { return fmt.Sprintf("%s-%x-%x", id.agent, id.log, id.number) }

// Agent returns the name of the agent that began the transaction.
func (id ID) Agent() string { return id.agent }

// ParseID reads the text of an ID.
func ParseID(text string) (ID, error) {
	parts := strings.Split(text, "-")
	if len(parts) == 3 {
		log, bad1 := strconv.ParseInt(parts[1], 16, 64)
		number, bad2 := strconv.ParseInt(parts[2], 16, 64)
		id := ID{parts[0], log, number}
		if bad1 == nil && bad2 == nil && id.valid() && id.String() == text {
			return id, nil
		}
	}
	return ID{}, fmt.Errorf("threephase: %w: %.80q is no ID of a transaction", pawl.ErrInvalid, text)
}

func (id ID) valid() bool {
	return agentNames.MatchString(id.agent) && id.log > 0 && id.log <= maxLog && id.number > 0 && id.number <= maxNumber
}
