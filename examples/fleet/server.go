package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/group"
)

// settings are what a server has to know. The settings come through its standard input.
type settings struct {
	Store  string
	TTL    time.Duration
	Group  string
	ID     string
	Weight int
	Takes  time.Duration // of a request
}

// slots are how many requests a server works on at a time. Others queue.
const slots = 8

// connect returns a client of the store. The function closes both.
func connect(ctx context.Context, url string, ttl time.Duration) (*pawl.Client, func(), error) {
	eng, err := open.Open(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	client, err := pawl.New(ctx, eng, &pawl.Options{TTL: ttl, Lazy: true}) // the join opens the session
	if err != nil {
		return nil, nil, errors.Join(err, eng.Close())
	}
	return client, func() {
		client.Close(context.Background()) //nolint:errcheck // the session ends in any case
		eng.Close()                        //nolint:errcheck // nothing can be done
	}, nil
}

// serve is a server. The server joins its group, and leaves when its standard input ends.
func serve(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	var s settings
	if err := json.NewDecoder(in).Decode(&s); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Minute}
	serving := make(chan error, 1)
	go func() { serving <- server.Serve(l) }()
	defer func() { server.Close(); <-serving }()
	client, end, err := connect(ctx, s.Store, s.TTL)
	if err != nil {
		return err
	}
	defer end()
	var member *group.Membership
	err = client.Retry(ctx, time.Minute, func() (err error) { // the store of a busy machine may answer late
		member, err = group.New(client, s.Group).Join(ctx, group.Member{ID: s.ID, Addr: l.Addr().String(), Weight: s.Weight})
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "joined")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, in) //nolint:errcheck // its end is all that counts
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	case <-member.Ended():
		return member.Err()
	}
	leaving, stop := context.WithTimeout(context.WithoutCancel(ctx), s.TTL)
	defer stop()
	member.Leave(leaving) //nolint:errcheck // the program is at its end
	return nil
}

func (s settings) handler() http.Handler {
	free := make(chan struct{}, slots)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case free <- struct{}{}:
			defer func() { <-free }()
		case <-r.Context().Done():
			return
		}
		time.Sleep(s.Takes)
		fmt.Fprintln(w, s.ID)
	})
}
