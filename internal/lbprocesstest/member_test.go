package lbprocesstest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/group"
	"github.com/pawl-go/pawl/internal/testservers"
)

// beMember makes the test binary a member. The variable has a role in JSON.
const beMember = "PAWL_LB_MEMBER"

func TestMain(m *testing.M) {
	if text := os.Getenv(beMember); text != "" {
		fmt.Fprintln(os.Stderr, serve(text))
		os.Exit(1)
	}
	os.Exit(testservers.Main(m))
}

// The names of the groups, which are also the kinds of servers.
const (
	web = "web" // HTTP
	rpc = "rpc" // gRPC
)

// role is what a member has to know.
type role struct {
	Store string
	TTL   time.Duration
	Kind  string
}

// connect returns a client of the store behind the URL, and a function that closes both.
func connect(ctx context.Context, url string, ttl time.Duration, label string) (*pawl.Client, func(), error) {
	eng, err := open.Open(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	client, err := pawl.New(ctx, eng, &pawl.Options{TTL: ttl, Label: label, Lazy: true}) // a join opens the session
	return client, func() {
		client.Close(context.Background()) //nolint:errcheck // the test is over
		eng.Close()                        //nolint:errcheck // as above
	}, err
}

// serve is a member until it is killed. The end of its input is that of the test. The member tells its ID when it has joined,
// and later that the store does not answer.
func serve(text string) error {
	var is role
	if err := json.Unmarshal([]byte(text), &is); err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // an error is an end too
		os.Exit(0)
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	id := fmt.Sprintf("%v/%d", l.Addr(), os.Getpid()) // another process may have the port later
	serving := make(chan error, 1)
	go func() { serving <- serveAt(l, is.Kind, id) }()
	client, joined, err := join(is, group.Member{ID: id, Addr: l.Addr().String()})
	if err != nil {
		return err
	}
	fmt.Println(id)
	for {
		select {
		case err = <-serving:
			return fmt.Errorf("the server has ended: %w", err)
		case <-joined.Ended():
			return fmt.Errorf("the member has ended: %w", joined.Err())
		case <-time.After(50 * time.Millisecond):
			if client.Err() != nil {
				fmt.Println("gap")
			}
		}
	}
}

// join tries again while the machine is busy with the start of others.
func join(is role, m group.Member) (client *pawl.Client, joined *group.Membership, err error) {
	client, _, err = connect(context.Background(), is.Store, is.TTL, m.ID)
	if err != nil {
		return nil, nil, err
	}
	err = client.Retry(context.Background(), 5*time.Minute, func() error {
		joined, err = group.New(client, is.Kind).Join(context.Background(), m)
		return err
	})
	return client, joined, err
}

func serveAt(l net.Listener, kind, id string) error {
	if kind == rpc {
		s := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(s, healthy{})
		return s.Serve(l)
	}
	answer := []byte(id + strings.Repeat(" text", 100))
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-time.After(work)
		w.Write(answer) //nolint:errcheck // the client sees it
	})}
	return s.Serve(l)
}

// work is how long a request takes.
const work = 2 * time.Millisecond

// healthy is a gRPC server.
type healthy struct {
	grpc_health_v1.UnimplementedHealthServer
}

// Check implements the health service.
func (healthy) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	<-time.After(work)
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}
