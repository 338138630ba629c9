package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// The servers of the story.
const (
	heavy       = "a"
	heavyWeight = 3
	doomed      = "d"
	slow        = "e"
)

var (
	early = []string{"a", "b", "c", "d", "e"}
	late  = []string{"f", "g"}
)

// takes is how long a request takes at a server that is not slow.
const takes = 4 * time.Millisecond

// crew is the processes of the servers, by ID.
type crew struct {
	settings
	mu  sync.Mutex
	all map[string]*process
}

type process struct {
	cmd *exec.Cmd
	in  io.Closer
}

// start starts servers, and returns when they have joined.
func (c *crew) start(ctx context.Context, ids ...string) error {
	errs := make([]error, len(ids))
	var starting sync.WaitGroup
	for i, id := range ids {
		starting.Go(func() { errs[i] = c.startOne(ctx, id) })
	}
	starting.Wait()
	return errors.Join(errs...)
}

func (c *crew) startOne(ctx context.Context, id string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s := c.settings
	s.ID, s.Weight, s.Takes = id, 1, takes
	switch id {
	case heavy:
		s.Weight = heavyWeight
	case slow:
		s.Takes *= 10
	}
	cmd := exec.Command(self, serverArg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.mu.Lock()
	c.all[id] = &process{cmd, in}
	c.mu.Unlock()
	unhooked := context.AfterFunc(ctx, func() { cmd.Process.Kill() }) //nolint:errcheck // it may have ended
	defer unhooked()
	if err = json.NewEncoder(in).Encode(s); err == nil {
		_, err = bufio.NewReader(out).ReadString('\n')
	}
	if err != nil {
		return fmt.Errorf("server %s does not start: %w", id, errors.Join(ctx.Err(), err))
	}
	return nil
}

// kill ends a server at once.
func (c *crew) kill(id string) error {
	c.mu.Lock()
	p := c.all[id]
	delete(c.all, id)
	c.mu.Unlock()
	err := p.cmd.Process.Kill()
	p.cmd.Wait() //nolint:errcheck // it was killed
	return err
}

// end lets all servers leave and end.
func (c *crew) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, p := range c.all {
		p.in.Close() //nolint:errcheck // it may have ended
	}
	for id, p := range c.all {
		if err := p.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("server %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}
