// Package etcdfence makes fencing tokens count in etcd 3.4 or later. Beside a key that a lock
// protects, a mark remembers the newest token. One transaction compares the mark, raises it and
// writes. The lock may be in another store.
//
// # What it protects
//
// The writes of the transaction. A mark is as durable as the data that it protects:
// etcd keeps both or loses both.
//
// # What it does not protect
//
//   - Writes without the guard, Check followed by a write, and data outside
//     this etcd.
//   - Anything, after the marks were lost. When a snapshot of etcd was restored the marks are
//     as old as the data. Then the first token that is not older than the marks passes.
//
// Equal tokens pass: it is the same holder. A call whose reply was lost has an
// unknown outcome, and may be repeated if the write may be.
//
// Marks stay, one small key for each resource: delete a mark only when no older
// holder can be left. With roles, the user needs the right to read and
// write the prefix of the marks.
package etcdfence

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/fence"
)

// Options change where marks are. The zero value is the default.
type Options struct {
	// Prefix begins the key of every mark. Default "pawl/fence/".
	Prefix string
}

// Guard is a [fence.Guard] in etcd. Create it with [New].
type Guard struct {
	kv     clientv3.KV
	prefix string
}

var _ fence.Guard = (*Guard)(nil)

// New returns a guard in the etcd of a client, which stays the caller's. Nil
// opts are the defaults.
func New(kv clientv3.KV, opts *Options) *Guard {
	g := &Guard{kv, "pawl/fence/"}
	if opts != nil && opts.Prefix != "" {
		g.prefix = opts.Prefix
	}
	return g
}

// Check implements [fence.Guard]. Check is a step of its own, which protects
// no later write: only Put and Do protect.
func (g *Guard) Check(ctx context.Context, resource string, token fence.Token) error {
	return g.Do(ctx, resource, token)
}

// Put writes value to key if the token passes for the key, in one transaction.
func (g *Guard) Put(ctx context.Context, key string, token fence.Token, value string) error {
	return g.Do(ctx, key, token, clientv3.OpPut(key, value))
}

// Do does the operations if the token passes for the resource, in one
// transaction; else it returns an error that matches [fence.ErrStale]. Do is for
// several keys, deletions, and keys with a lease. As in every transaction
// no key may be written twice, and etcd allows 127 operations beside the mark,
// unless its settings say otherwise.
func (g *Guard) Do(ctx context.Context, resource string, token fence.Token, ops ...clientv3.Op) error {
	if err := fence.Validate(resource, token); err != nil {
		return err
	}
	// A comparison of a missing value is false: the first token passes.
	// As texts of one length, numbers compare as they should.
	mark, number := g.prefix+resource, fmt.Sprintf("%016d", token)
	reply, err := g.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(mark), ">", number)).
		Else(append([]clientv3.Op{clientv3.OpPut(mark, number)}, ops...)...).
		Commit()
	switch {
	case err != nil:
		return fmt.Errorf("write %q under guard: %w", resource, err)
	case reply.Succeeded:
		return fence.Stale(resource, token)
	}
	return nil
}
