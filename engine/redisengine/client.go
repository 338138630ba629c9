package redisengine

import (
	"cmp"
	"context"
	"fmt"
	"strings"
)

// Client is the part of a Redis library that the engine needs. [New] brings
// its own for rueidis, and package goredis has a Client for go-redis.
//
// A Client is safe for concurrent use. A command is done at most once: a lost
// reply is an error, because only the engine's caller knows the effect of a
// repetition. Commands that may be repeated say so. A command does not change after it was
// passed on.
//
// A call gets the ctx of a verb, but need not end with it. Nor need it follow a
// server of a cluster, MOVED or ASK: the engine does both.
type Client interface {
	// Cluster reports whether it is the client of a Redis Cluster. The answer never changes.
	Cluster() bool

	// Do sends one command.
	Do(ctx context.Context, cmd Command) Reply

	// Together sends commands in order over one connection, to the server that has the
	// keys of the first. Nobody else uses that connection meanwhile, because the last
	// command may block it, as WAIT does.
	Together(ctx context.Context, cmds []Command) []Reply

	// Pipeline sends commands of any keys, all at once, and follows redirections of servers. Callers may repeat
	// the commands.
	Pipeline(ctx context.Context, cmds []Command) []Reply

	// Listen takes a connection of its own, so that other commands keep whatever fast path they
	// have. Messages of the channels that are subscribed there are handed over one after the other.
	// So is each confirmation of the server that it has subscribed a channel.
	Listen(ctx context.Context, receive func(channel, message string), confirmed func(channel string)) (*Listener, error)

	// Nodes returns a client of each server of a cluster that has keys, by its address.
	Nodes(ctx context.Context) (map[string]Client, error)
}

// Listener is a connection that hands over messages. A Listener makes no other connection when it ends, or
// confirms all channels again after it did. Messages published meanwhile are lost, which the engine
// has to know. One goroutine subscribes and unsubscribes channels.
type Listener struct {
	Subscribe   func(ctx context.Context, channels []string) error // sends it
	Unsubscribe func(ctx context.Context, channels []string) error
	Broken      <-chan error // says once that the connection ended
	Close       func()       // ends it without waiting
}

// Command is one command of Redis, in three parts.
type Command struct {
	Head []string // its name, and the words before its keys
	Keys []string // all of one slot; a command without is for a single server
	Args []string // the words after the keys

	Reads bool // it changes nothing, so that it may be repeated
}

// Reply is a server's answer: an int64, a string, a []any of replies, in which an error may stand
// as well, or nil. A Reply is nil where there is an error. An error of the server begins with its own
// word, as NOSCRIPT.
type Reply struct {
	Value any
	Err   error

	short error // it was done, and too few replicas know that
}

// command returns a command without keys, or with one key.
func command(name, key string, args ...string) Command {
	if key == "" {
		return Command{Head: []string{name}, Args: args}
	}
	return Command{Head: []string{name}, Keys: []string{key}, Args: args}
}

// read returns a command that changes nothing.
func read(name, key string, args ...string) Command {
	cmd := command(name, key, args...)
	cmd.Reads = true
	return cmd
}

// says reports whether the server answered with an error of this kind.
func (r Reply) says(word string) bool { return r.Err != nil && strings.HasPrefix(r.Err.Error(), word) }

// failed is why a step does not count: it was not done, or too few replicas know it.
func (r Reply) failed() error { return cmp.Or(r.Err, r.short) }

// number is for a reply that has to be a number.
func (r Reply) number() (int64, error) { return answer[int64](r) }

// list is for a reply that has to be a list.
func (r Reply) list() ([]any, error) { return answer[[]any](r) }

func answer[T any](r Reply) (is T, err error) {
	if r.Err != nil {
		return is, r.Err
	}
	is, ok := r.Value.(T)
	if !ok {
		err = r.unexpected()
	}
	return is, err
}

func (r Reply) unexpected() error { return fmt.Errorf("the server answered %v", r.Value) }
