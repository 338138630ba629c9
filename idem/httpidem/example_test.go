package httpidem_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/httpidem"
)

// A payment is sent twice with one key, and made once.
func Example() {
	ctx := context.Background()
	client, err := pawl.New(ctx, memengine.New(), nil) // a program opens the store that it has
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	once, err := httpidem.New(idem.NewLeases(client, nil), &httpidem.Options{
		Identity: func(r *http.Request) (string, error) {
			user, _, ok := r.BasicAuth() // which a handler around this one has checked
			if !ok {
				return "", fmt.Errorf("no user")
			}
			return user, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("pay")
		w.WriteHeader(http.StatusCreated)
	})))
	defer server.Close()

	payments := &http.Client{Transport: &httpidem.Transport{}}
	order := httpidem.WithKey(ctx, "order-17")
	for range 2 {
		r, err := http.NewRequestWithContext(order, http.MethodPost, server.URL+"/payments", strings.NewReader(`{"amount": 5}`))
		if err != nil {
			log.Fatal(err)
		}
		r.SetBasicAuth("user-7", "secret")
		reply, err := payments.Do(r)
		if err != nil {
			log.Fatal(err)
		}
		reply.Body.Close()
		fmt.Printf("%s, replayed: %q\n", reply.Status, reply.Header.Get(httpidem.ReplayedHeader))
	}
	// Output:
	// pay
	// 201 Created, replayed: ""
	// 201 Created, replayed: "true"
}
