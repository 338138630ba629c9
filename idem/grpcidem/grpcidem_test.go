package grpcidem_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/grpcidem"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// bank is a server of one method, which is made without generated code, and its client.
type bank struct {
	*testing.T
	runs   atomic.Int64
	pay    func(context.Context, string) (string, error)
	errors chan error
	conn   *grpc.ClientConn
}

const payMethod = "/bank.Accounts/Pay"

var description = grpc.ServiceDesc{ServiceName: "bank.Accounts", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
	MethodName: "Pay",
	Handler: func(srv any, ctx context.Context, decode func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		b, _ := srv.(*bank)
		return through(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: payMethod}, func(ctx context.Context, req any) (any, error) {
			b.runs.Add(1)
			in, _ := req.(*wrapperspb.StringValue)
			text, err := b.pay(ctx, in.GetValue())
			if err != nil {
				return nil, err
			}
			return wrapperspb.String(text), nil
		})
	},
}}}

func byUser(ctx context.Context) (string, error) {
	if users := metadata.ValueFromIncomingContext(ctx, "user"); len(users) == 1 {
		return users[0], nil
	}
	return "", errors.New("no user")
}

const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.1s",
	"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]}}]}`

func newBank(t *testing.T, eng engine.Engine, change func(*grpcidem.Options), dial ...grpc.DialOption) *bank {
	t.Helper()
	client, err := pawl.New(t.Context(), eng, &pawl.Options{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // nothing is lost
	b := &bank{T: t, errors: make(chan error, 100), pay: func(_ context.Context, text string) (string, error) { return "paid " + text, nil }}
	opts := &grpcidem.Options{Identity: byUser, Report: func(_ context.Context, _ string, err error) { b.errors <- err }}
	if change != nil {
		change(opts)
	}
	intercept, err := grpcidem.UnaryServer(idem.NewLeases(client, nil), opts)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(intercept))
	server.RegisterService(&description, b)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(grpcidem.UnaryClient()))
	if b.conn, err = grpc.NewClient(l.Addr().String(), dial...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.conn.Close() }) //nolint:errcheck // nothing is lost
	return b
}

// call sends a payment; replayed is the header.
func (b *bank) call(ctx context.Context, text string) (reply *wrapperspb.StringValue, replayed bool, err error) {
	var header metadata.MD
	reply = new(wrapperspb.StringValue)
	err = b.conn.Invoke(ctx, payMethod, wrapperspb.String(text), reply, grpc.Header(&header))
	return reply, len(header.Get(grpcidem.ReplayedHeader)) > 0, err
}

// with returns the context of a call of user-7 with a key.
func with(t *testing.T, key string) context.Context {
	return grpcidem.WithKey(metadata.AppendToOutgoingContext(t.Context(), "user", "user-7"), key)
}

func (b *bank) want(err error, code codes.Code, reason string) {
	b.Helper()
	is := status.Convert(err)
	var got string
	delay := false
	for _, d := range is.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			got = d.GetReason()
		case *errdetails.RetryInfo:
			delay = d.GetRetryDelay().AsDuration() == time.Second
		}
	}
	if is.Code() != code || got != reason || delay != (code == codes.Aborted || code == codes.Unavailable) {
		b.Errorf("%v with reason %q, delay %v; want %v, %q", err, got, delay, code, reason)
	}
}

func each(t *testing.T, test func(t *testing.T, eng engine.Engine)) {
	t.Run("memory", func(t *testing.T) { test(t, memengine.New()) })
	t.Run("redis", func(t *testing.T) {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testservers.SharedRedis(t).Addr}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		eng := redisengine.New(c, &redisengine.Options{Prefix: "grpc-" + idem.NewToken()})
		if err := eng.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, eng)
	})
}

// TestReplay: a repeat has the bytes of the message, or the status with its details, and runs nothing.
func TestReplay(t *testing.T) {
	each(t, func(t *testing.T, eng engine.Engine) {
		b := newBank(t, eng, nil)
		first, replayed, err := b.call(with(t, "a"), "5")
		if err != nil || replayed {
			t.Fatal(replayed, err)
		}
		repeat, replayed, err := b.call(with(t, "a"), "5")
		if err != nil || !replayed || b.runs.Load() != 1 {
			t.Errorf("%v, %v after %d runs", replayed, err, b.runs.Load())
		}
		x, errX := proto.Marshal(first)
		y, errY := proto.Marshal(repeat)
		if !bytes.Equal(x, y) || first.GetValue() != "paid 5" || errors.Join(errX, errY) != nil {
			t.Errorf("%q and %q", x, y)
		}
		declined, err := status.New(codes.FailedPrecondition, "declined").WithDetails(&errdetails.ErrorInfo{Reason: "POOR"})
		if err != nil {
			t.Fatal(err)
		}
		b.pay = func(context.Context, string) (string, error) { return "", declined.Err() }
		_, _, err1 := b.call(with(t, "b"), "5")
		_, replayed, err2 := b.call(with(t, "b"), "5")
		if s := status.Convert(err2).Proto(); !replayed || !proto.Equal(s, declined.Proto()) || !proto.Equal(s, status.Convert(err1).Proto()) || b.runs.Load() != 2 {
			t.Errorf("%v, %v, %v after %d runs", replayed, err1, err2, b.runs.Load())
		}
	})
}

// TestRefusals: every status that is the interceptor's.
func TestRefusals(t *testing.T) {
	b := newBank(t, memengine.New(), func(o *grpcidem.Options) { o.MaxResponse = 200 })
	user := metadata.AppendToOutgoingContext(t.Context(), "user", "user-7")
	_, _, err := b.call(user, "5")
	b.want(err, codes.InvalidArgument, grpcidem.KeyMissing)
	_, _, err = b.call(metadata.AppendToOutgoingContext(user, grpcidem.Header, "a", grpcidem.Header, "b"), "5")
	b.want(err, codes.InvalidArgument, grpcidem.KeyInvalid)
	for _, key := range []string{"", "a b", "é", strings.Repeat("a", 256)} {
		_, _, err = b.call(with(t, key), "5")
		b.want(err, codes.InvalidArgument, grpcidem.KeyInvalid)
	}
	_, _, err = b.call(grpcidem.WithKey(t.Context(), "a"), "5")
	b.want(err, codes.PermissionDenied, grpcidem.CallerUnknown)
	if b.runs.Load() != 0 {
		t.Errorf("%d runs", b.runs.Load())
	}
	if _, _, err = b.call(with(t, "a"), "5"); err != nil {
		t.Fatal(err)
	}
	_, _, err = b.call(with(t, "a"), "6")
	b.want(err, codes.FailedPrecondition, grpcidem.KeyReused)
	if reply, replayed, err := b.call(grpcidem.WithKey(metadata.AppendToOutgoingContext(t.Context(), "user", "user-8"), "a"), "6"); err != nil || replayed || reply.GetValue() != "paid 6" {
		t.Errorf("another user: %v, %v, %v", reply, replayed, err)
	}
	for i := range 2 {
		if _, _, err = b.call(with(t, "large"), strings.Repeat("x", 200)); i == 0 && err != nil {
			t.Error(err)
		}
	}
	b.want(err, codes.FailedPrecondition, grpcidem.ResponseNotKept)
	if b.runs.Load() != 3 {
		t.Errorf("%d runs", b.runs.Load())
	}
	if _, err := grpcidem.UnaryServer(new(idem.Leases), nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("without Identity: %v", err)
	}
}

// TestInFlightAndCancel: a second call is told to come again. The handler outlives its client, and a client with a
// retryPolicy gets the response with the same key.
func TestInFlightAndCancel(t *testing.T) {
	each(t, func(t *testing.T, eng engine.Engine) {
		b := newBank(t, eng, nil)
		began, goOn, told := make(chan bool), make(chan bool), make(chan error, 1)
		b.pay = func(ctx context.Context, text string) (string, error) {
			began <- true
			<-goOn
			if c, ok := grpcidem.FromContext(ctx); !ok || c.Key().ID != "a" {
				t.Error("no claim")
			}
			told <- ctx.Err()
			return "paid " + text, nil
		}
		ctx, cancel := context.WithCancel(with(t, "a"))
		left := make(chan error)
		go func() {
			_, _, err := b.call(ctx, "5")
			left <- err
		}()
		<-began
		_, _, err := b.call(with(t, "a"), "5")
		b.want(err, codes.Aborted, grpcidem.InFlight)
		cancel()
		if err := <-left; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
		goOn <- true
		if err := <-told; err != nil {
			t.Errorf("the handler is told %v", err)
		}
		reply, replayed, err := b.call(with(t, "a"), "5")
		for status.Code(err) == codes.Aborted { // until the first has ended
			reply, replayed, err = b.call(with(t, "a"), "5")
		}
		if reply.GetValue() != "paid 5" || !replayed || err != nil || b.runs.Load() != 1 {
			t.Errorf("%v, %v, %v after %d runs", reply, replayed, err, b.runs.Load())
		}
	})
}

// TestRetries: a status that is not final is not kept, and the retries of gRPC keep the key.
func TestRetries(t *testing.T) {
	b := newBank(t, memengine.New(), nil, grpc.WithDefaultServiceConfig(retries))
	b.pay = func(ctx context.Context, text string) (string, error) {
		if keys := metadata.ValueFromIncomingContext(ctx, grpcidem.Header); len(keys) != 1 || keys[0] != "a" {
			t.Errorf("keys %q", keys)
		}
		if b.runs.Load() < 3 {
			return "", status.Error(codes.Unavailable, "later")
		}
		return "paid " + text, nil
	}
	if reply, _, err := b.call(with(t, "a"), "5"); err != nil || reply.GetValue() != "paid 5" || b.runs.Load() != 3 {
		t.Errorf("%v, %v after %d runs", reply, err, b.runs.Load())
	}
}

// TestStoreDown: a call is refused, or let through by option.
func TestStoreDown(t *testing.T) {
	for _, let := range []bool{false, true} {
		store := faulty.New(memengine.New())
		b := newBank(t, engine.Like(store.Engine, store), func(o *grpcidem.Options) { o.LetThrough = let })
		store.Set(faulty.Fails, faulty.Get)
		reply, _, err := b.call(with(t, "a"), "5")
		if let && (err != nil || reply.GetValue() != "paid 5") {
			t.Errorf("%v, %v", reply, err)
		}
		if !let {
			b.want(err, codes.Unavailable, grpcidem.StoreUnavailable)
		}
		if err := <-b.errors; (b.runs.Load() == 1) != let || !errors.Is(err, pawl.ErrUnavailable) {
			t.Errorf("%d runs, reported %v", b.runs.Load(), err)
		}
	}
}
