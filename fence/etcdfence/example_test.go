package etcdfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/etcdfence"
	"github.com/pawl-go/pawl/internal/testservers"
)

// connect returns a client of an etcd of the tests.
func connect() *clientv3.Client {
	addr := testservers.SharedEtcd(testservers.ForExample()).Addr
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// The holder of token 33 was frozen, and that of 34 wrote meanwhile.
func ExampleGuard_Put() {
	ctx := context.Background()
	client := connect()
	defer client.Close()
	guard := etcdfence.New(client, nil)

	fmt.Println(guard.Put(ctx, "report", 34, "of the second holder"))
	err := guard.Put(ctx, "report", 33, "of the first holder, late")
	fmt.Println(errors.Is(err, fence.ErrStale))
	reply, err := client.Get(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", reply.Kvs[0].Value)
	// Output:
	// <nil>
	// true
	// of the second holder
}
