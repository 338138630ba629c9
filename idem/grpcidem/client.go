package grpcidem

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// The names of the metadata.
const (
	Header         = "idempotency-key"
	ReplayedHeader = "idempotent-replayed"
)

type contextKey struct{}

// WithKey returns a context whose calls [UnaryClient] sends with this key. A key stands for one operation, so a context is
// for one call and its repeats. [idem.NewToken] makes a key. A server that calls another server makes a key
// for each such call. The key of its client belongs to the call of that client.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

// UnaryClient returns an interceptor that sends the key in the context of a call. A call without a key is sent as it is.
// An invalid key is refused by InvalidArgument, before anything is sent.
func UnaryClient() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if key, ok := ctx.Value(contextKey{}).(string); ok {
			if err := checkKey(key); err != nil {
				return err
			}
			out, _ := metadata.FromOutgoingContext(ctx)
			out = out.Copy() // of a context that another call may have
			out.Set(Header, key)
			ctx = metadata.NewOutgoingContext(ctx, out)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}
