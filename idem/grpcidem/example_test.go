package grpcidem_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/grpcidem"
)

// A server and a client with their interceptors.
func Example() {
	ctx := context.Background()
	client, err := pawl.New(ctx, memengine.New(), nil) // a program opens the store that it has
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	once, err := grpcidem.UnaryServer(idem.NewLeases(client, nil), &grpcidem.Options{
		Identity: func(ctx context.Context) (string, error) {
			users := metadata.ValueFromIncomingContext(ctx, "user") // which another interceptor has checked
			if len(users) != 1 {
				return "", fmt.Errorf("no user")
			}
			return users[0], nil
		},
		Needs: func(method string) bool { return method == "/bank.Accounts/Pay" },
	})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(once))
	defer server.Stop()

	conn, err := grpc.NewClient("localhost:4711", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(grpcidem.UnaryClient()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	order := grpcidem.WithKey(ctx, "order-17") // the context of each call for this order
	_ = order
}
