package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// home is the other side of the server: the bank, and the places where requests are held up.
type home struct {
	url     string
	server  *http.Server
	ended   chan error
	reached []chan struct{} // is closed when the first request has come to its middle
	release []chan struct{} // close it to let that request go on
	begun   []chan struct{} // is closed when the second request has come to the server

	mu      sync.Mutex
	charges []int // by form
	known   map[string]bool
}

func newHome() (*home, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &home{url: "http://" + listener.Addr().String(), ended: make(chan error, 1),
		charges: make([]int, len(forms)), known: map[string]bool{}}
	for range forms {
		h.reached = append(h.reached, make(chan struct{}))
		h.release = append(h.release, make(chan struct{}))
		h.begun = append(h.begun, make(chan struct{}))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /bank/{form}", h.charge)
	mux.HandleFunc("POST /middle/{form}", h.holdUp)
	mux.HandleFunc("POST /begun/{form}", func(_ http.ResponseWriter, r *http.Request) { close(h.begun[formOf(r)]) })
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { h.ended <- h.server.Serve(listener) }()
	return h, nil
}

func (h *home) close() error {
	err := h.server.Close()
	if why := <-h.ended; !errors.Is(why, http.ErrServerClosed) {
		err = errors.Join(err, why)
	}
	return err
}

func formOf(r *http.Request) int {
	n, err := strconv.Atoi(r.PathValue("form"))
	if err != nil {
		panic(err) // the server of this program sends numbers
	}
	return n
}

// charge is the bank. The bank applies a key once, if the request has one.
func (h *home) charge(_ http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := r.FormValue("key")
	if key != "" && h.known[key] {
		return
	}
	h.known[key] = true
	h.charges[formOf(r)]++
}

func (h *home) holdUp(_ http.ResponseWriter, r *http.Request) {
	form := formOf(r)
	close(h.reached[form])
	select {
	case <-h.release[form]:
	case <-r.Context().Done(): // the server was killed
	}
}

// paid returns how often each form has paid.
func (h *home) paid(ctx context.Context, dir string) ([]int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := append([]int(nil), h.charges...)
	for i, f := range forms {
		if f.paid == nil {
			continue
		}
		db, err := open(dir, i)
		if err != nil {
			return nil, err
		}
		all[i], err = f.paid(ctx, db)
		if err := errors.Join(err, db.Close()); err != nil {
			return nil, err
		}
	}
	return all, nil
}
