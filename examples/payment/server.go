package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/sqliteengine"
)

// settings are what the server has to know. The settings come through its standard input.
type settings struct {
	Dir  string // of all files
	Home string // the URL of the program that started the server; it has the bank
	TTL  time.Duration
}

// client returns a client of the store of locks.
func (s settings) client(ctx context.Context) (*pawl.Client, func(), error) {
	store, err := sqliteengine.New(ctx, filepath.Join(s.Dir, "locks.db"), nil)
	if err != nil {
		return nil, nil, err
	}
	client, err := pawl.New(ctx, store, &pawl.Options{TTL: s.TTL})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return client, func() {
		client.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its session ends anyway
		store.Close()
	}, nil
}

// tell sends a message about a form home, and returns when that was answered.
func (s settings) tell(ctx context.Context, what string, form int, key string) error {
	to := fmt.Sprintf("%s/%s/%d?key=%s", s.Home, what, form, url.QueryEscape(key))
	return post(ctx, to, nil)
}

// post returns an error unless the answer is 200.
func post(ctx context.Context, to string, header http.Header) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, nil)
	if err != nil {
		return err
	}
	if header != nil {
		request.Header = header
	}
	request.Close = true // a connection to a killed server is of no use
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return fmt.Errorf("%s: %s", answer.Status, why)
	}
	return nil
}

// serve is the server. The server prints its address, and ends when its standard input does.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	var s settings
	if err := json.NewDecoder(in).Decode(&s); err != nil {
		return err
	}
	client, end, err := s.client(ctx)
	if err != nil {
		return err
	}
	defer end()
	mux := http.NewServeMux()
	for i := range forms {
		db, err := open(s.Dir, i)
		if err != nil {
			return err
		}
		defer db.Close()
		mux.Handle("POST /pay/"+strconv.Itoa(i), &handler{settings: s, form: i, shop: shop{db: db, client: client}})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	err = json.NewEncoder(out).Encode("http://" + listener.Addr().String())
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	err = errors.Join(err, server.Close())
	if why := <-ended; !errors.Is(why, http.ErrServerClosed) {
		err = errors.Join(err, why)
	}
	return err
}

// The clicks of the client. A repeat of a request after an error is no click.
const (
	first  = "first"
	second = "second"
)

// handler answers the payments of one form.
type handler struct {
	settings
	form int
	shop shop
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, s, key := r.Context(), h.shop, r.Header.Get("Idempotency-Key")
	s.bank = func(ctx context.Context, key string) error { return h.tell(ctx, "bank", h.form, key) }
	s.middle = func() {}
	var held error
	switch r.Header.Get("Click") {
	case first: // home answers late, or kills the server
		s.middle = func() { held = h.tell(context.WithoutCancel(ctx), "middle", h.form, "") }
	case second:
		held = h.tell(ctx, "begun", h.form, "")
	}
	err := forms[h.form].pay(ctx, &s, key)
	if err = errors.Join(held, err); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
