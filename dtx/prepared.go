package dtx

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx/internal/protocol"
)

// foreignFormat is the format of the names of branches that another protocol finishes: "paw3" as a number.
const foreignFormat = 0x70617733

var foreignNames = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Prepare runs fn in a new branch, and prepares the branch under a name. This is for a protocol that decides itself, such as package
// threephase. No [Coordinator] recovers the branch, so the caller calls [Resource.Finish] in the end, also after a crash.
// The name is 1 to 64 ASCII letters, digits, underscores and hyphens, and no other branch of the server may have it. The prepared branch
// is bound to no connection.
//
// An error says that the branch is rolled back, or, if the connection was lost, that the server may still prepare it.
func (r *Resource) Prepare(ctx context.Context, name string, fn func(ctx context.Context, db dialect.DB) error) error {
	id, err := r.foreign(name)
	if err != nil {
		return err
	}
	lease := 10 * time.Second
	if deadline, bounded := ctx.Deadline(); bounded {
		lease = max(time.Until(deadline), time.Second)
	}
	b, err := r.begin(ctx, id, false, lease)
	if err != nil {
		return failed("prepare", err)
	}
	defer b.undo() // unless it is prepared
	if err := fn(ctx, b); err != nil {
		return err
	}
	if kind, err := b.vote(ctx); kind != protocol.VotedYes {
		return failed("prepare "+name, err)
	}
	b.release(r.dialect == dialect.PostgreSQL) // MariaDB gives the branch to other connections when this ends
	return nil
}

// Finish commits or rolls back a branch that [Resource.Prepare] has prepared. A branch that is not there is finished: Finish returns nil. While
// another connection has the branch, Finish tries again until ctx ends.
func (r *Resource) Finish(ctx context.Context, name string, commit bool) error {
	id, err := r.foreign(name)
	if err != nil {
		return err
	}
	return failed("finish "+name, r.settle(ctx, id, commit))
}

// Prepared returns the names of the branches that [Resource.Prepare] has prepared, if the names begin with prefix.
func (r *Resource) Prepared(ctx context.Context, prefix string) (names []string, err error) {
	all, err := r.listNames(ctx, prefix)
	for _, n := range all {
		ours := r.dialect == dialect.PostgreSQL || n.format == foreignFormat && n.qualifier == ""
		if ours && strings.HasPrefix(n.global, prefix) {
			names = append(names, n.global)
		}
	}
	return names, failed("list the prepared branches", err)
}

// foreign checks the resource and the name.
func (r *Resource) foreign(name string) (branchName, error) {
	if err := r.validate(); err != nil {
		return branchName{}, err
	}
	_, ours := parseBranch(name)
	switch {
	case !r.prepares():
		return branchName{}, fmt.Errorf("dtx: %w: the resource %s prepares no branch", pawl.ErrInvalid, r.name)
	case ours || !foreignNames.MatchString(name):
		return branchName{}, fmt.Errorf("dtx: %w: the name of a branch is %.80q: 1 to 64 letters, digits, underscores and hyphens are allowed, and no name of this package", pawl.ErrInvalid, name)
	}
	return branchName{global: name, format: foreignFormat}, nil
}
