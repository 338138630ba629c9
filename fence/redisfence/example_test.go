package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/redisfence"
	"github.com/pawl-go/pawl/internal/testservers"
)

// connect returns a client of a Redis of the tests, where nothing is known of a
// key.
func connect(ctx context.Context, key string) rueidis.Client {
	addr := testservers.SharedRedis(testservers.ForExample()).Addr
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{key, "pawl:fence:{" + key + "}"} {
		if err := client.Do(ctx, client.B().Del().Key(key).Build()).Error(); err != nil {
			log.Fatal(err)
		}
	}
	return client
}

// The holder of token 33 was frozen, and that of 34 wrote meanwhile.
func ExampleGuard_Set() {
	ctx := context.Background()
	client := connect(ctx, "report")
	defer client.Close()
	guard, err := redisfence.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(guard.Set(ctx, "report", 34, "of the second holder"))
	err = guard.Set(ctx, "report", 33, "of the first holder, late")
	fmt.Println(errors.Is(err, fence.ErrStale))
	fmt.Println(client.Do(ctx, client.B().Get().Key("report").Build()).ToString())
	// Output:
	// <nil>
	// true
	// of the second holder <nil>
}

// Any script runs under the guard: this script pays out no more than the balance.
func ExampleGuard_Run() {
	ctx := context.Background()
	const account = "account:7"
	client := connect(ctx, account)
	defer client.Close()
	guard, err := redisfence.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	pay := redisfence.NewScript(`
		local balance = tonumber(redis.call('GET', KEYS[1]) or '100')
		if balance < tonumber(ARGV[1]) then
			return redis.error_reply('POOR it has ' .. balance)
		end
		return redis.call('SET', KEYS[1], balance - ARGV[1])`)

	for _, token := range []fence.Token{34, 33, 35} {
		_, err := guard.Run(ctx, pay, account, token, []string{account}, []string{"60"})
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// stale fencing token: "account:7" has seen a newer token than 33
	// write "account:7" under guard: POOR it has 40
}
