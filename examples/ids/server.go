package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/redis/rueidis"
)

// ownRedis is a private Redis. That Redis listens on a socket in a folder of this program and on no port.
type ownRedis struct {
	program, dir string
	cmd          *exec.Cmd
	ended        chan error // has the error of cmd.Wait
}

func startRedis(ctx context.Context, program, dir string) (*ownRedis, error) {
	r := &ownRedis{program: program, dir: dir}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

func (r *ownRedis) socket() string { return filepath.Join(r.dir, "redis.sock") }

func (r *ownRedis) url() string { return "unix://" + r.socket() }

func (r *ownRedis) start(ctx context.Context) error {
	cmd := exec.Command(r.program, "--port", "0", "--unixsocket", r.socket(), "--dir", r.dir, "--save", "")
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd, r.ended = cmd, make(chan error, 1)
	go func(ended chan<- error) { ended <- cmd.Wait() }(r.ended)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		err := r.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case why := <-r.ended:
			r.cmd = nil
			return fmt.Errorf("%s ended before it was ready: %w", r.program, errors.Join(why, err))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", r.program, errors.Join(ctx.Err(), err))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (r *ownRedis) ping(ctx context.Context) error {
	options, err := rueidis.ParseURL(r.url())
	if err != nil {
		return err
	}
	options.DisableCache = true
	client, err := rueidis.NewClient(options)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Do(ctx, client.B().Ping().Build()).Error()
}

// stop kills the server, if it runs, and waits for its end.
func (r *ownRedis) stop() error {
	if r.cmd == nil {
		return nil
	}
	err := r.cmd.Process.Kill()
	<-r.ended
	r.cmd = nil
	return err
}

func (r *ownRedis) crash(ctx context.Context) error {
	if err := r.stop(); err != nil {
		return err
	}
	return r.start(ctx)
}
