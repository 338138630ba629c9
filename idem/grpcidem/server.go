package grpcidem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
)

// Limits and defaults of [Options].
const (
	DefaultMaxResponse = 256 << 10
	MaxMaxResponse     = idem.MaxResult
	MaxIdentity        = 200
	DefaultRetryDelay  = time.Second
)

// Options are the settings of [UnaryServer]. The zero value of each field means its default, but Identity has none.
type Options struct {
	// Identity names the caller, such as the subject of its certificate: 1 to [MaxIdentity] bytes of UTF-8 without control
	// characters. The name has to be authenticated. Without it, a client that guesses a key reads the response of another
	// client. So UnaryServer refuses Options without Identity. An error is returned as PermissionDenied, and its text goes
	// to Report only.
	Identity func(context.Context) (string, error)

	// Scope separates the keys of several servers on one store: 1 to 32 bytes, and no slash. Default "grpc".
	Scope string

	// Needs says whether calls of this method, such as "/bank.Accounts/Pay", need a key. Others go to the handler as they
	// are. Default: all need one.
	Needs func(fullMethod string) bool

	// Optional lets calls without a key go to the handler as they are. Default: they are refused.
	Optional bool

	// MaxResponse is the largest response that is kept, in encoded bytes: 1 to [MaxMaxResponse]. Default
	// [DefaultMaxResponse]. A larger one goes to the client, and a repeat is refused.
	MaxResponse int

	// Keep says whether a status is final, so that a repeat gets it. After another one, a repeat runs the handler again.
	// Default: OK, InvalidArgument, NotFound, AlreadyExists, PermissionDenied, FailedPrecondition, OutOfRange and Unimplemented.
	Keep func(codes.Code) bool

	// LetThrough lets calls go to the handler while the store does not answer. That voids the guarantee: the handler may
	// run twice for one key, also beside itself. Default: such calls are refused with Unavailable.
	LetThrough bool

	// RetryDelay is what Aborted and Unavailable tell the client: 1 ms to 1 h. Default [DefaultRetryDelay].
	RetryDelay time.Duration

	// Report is told errors that the client is not told: of the store, and of Identity. Report must be safe for concurrent
	// use. Default: nothing is told.
	Report func(ctx context.Context, fullMethod string, err error)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{pawl.ErrInvalid}, args...)...)
}

func orDefault[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

func (o Options) withDefaults() (Options, error) {
	orDefault(&o.Scope, "grpc")
	orDefault(&o.MaxResponse, DefaultMaxResponse)
	orDefault(&o.RetryDelay, DefaultRetryDelay)
	if o.Needs == nil {
		o.Needs = func(string) bool { return true }
	}
	if o.Keep == nil {
		o.Keep = final
	}
	if o.Report == nil {
		o.Report = func(context.Context, string, error) {}
	}
	switch {
	case o.Identity == nil:
		return o, invalid("Options.Identity is nil: a key is one of a caller, and this function names the caller")
	case len(o.Scope) > 32 || strings.Contains(o.Scope, "/"):
		return o, invalid("Options.Scope is %.100q: 1 to 32 bytes without a slash are allowed", o.Scope)
	case o.MaxResponse < 1 || o.MaxResponse > MaxMaxResponse:
		return o, invalid("Options.MaxResponse is %d: 1 to %d are allowed", o.MaxResponse, MaxMaxResponse)
	case o.RetryDelay < time.Millisecond || o.RetryDelay > time.Hour:
		return o, invalid("Options.RetryDelay is %v: 1ms to 1h are allowed", o.RetryDelay)
	}
	return o, idem.Key{Scope: o.Scope, ID: "-"}.Validate()
}

// final is the default of Options.Keep: codes that do not ask the client to try again, and name the mistake.
func final(code codes.Code) bool {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return true
	}
	return false
}

type interceptor struct {
	leases *idem.Leases
	opts   Options
}

// UnaryServer returns an interceptor that runs a handler once for each key, and returns its response to repeats: see the
// documentation of the package. UnaryServer fails with [pawl.ErrInvalid] unless the options have Identity and allowed values.
// Chain it after the interceptors that authenticate and limit.
func UnaryServer(leases *idem.Leases, opts *Options) (grpc.UnaryServerInterceptor, error) {
	if opts == nil {
		opts = new(Options)
	}
	o, err := opts.withDefaults()
	if err == nil && leases == nil {
		err = invalid("leases is nil")
	}
	if err != nil {
		return nil, fmt.Errorf("new interceptor: %w", err)
	}
	return (&interceptor{leases, o}).serve, nil
}

func (i *interceptor) serve(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ids := metadata.ValueFromIncomingContext(ctx, Header)
	if !i.opts.Needs(info.FullMethod) || i.opts.Optional && len(ids) == 0 {
		return next(ctx, req)
	}
	key, err := i.key(ctx, info.FullMethod, ids)
	if err != nil {
		return nil, err
	}
	message, ok := req.(proto.Message)
	if !ok {
		return nil, refusal(codes.Internal, StoreBroken, 0, "a request of type %T has no fingerprint", req)
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, refusal(codes.Internal, StoreBroken, 0, "encode the request: %v", err)
	}
	print := idem.FingerprintOf([]byte(info.FullMethod), text)
	c, err := i.leases.Begin(ctx, key, print, &idem.BeginOptions{NoWait: true})
	if err != nil {
		if i.opts.LetThrough && errors.Is(err, pawl.ErrUnavailable) && ctx.Err() == nil {
			i.opts.Report(ctx, info.FullMethod, fmt.Errorf("let a call through: %w", err))
			return next(ctx, req)
		}
		return nil, i.refuse(ctx, info.FullMethod, err)
	}
	if text, kept := c.Kept(); kept {
		return i.replay(ctx, info.FullMethod, text)
	}
	return i.run(ctx, req, info.FullMethod, c, next)
}

// key returns the key of a call.
func (i *interceptor) key(ctx context.Context, method string, ids []string) (key idem.Key, err error) {
	switch len(ids) {
	case 0:
		return key, refusal(codes.InvalidArgument, KeyMissing, 0, "the call has no metadata %s", Header)
	case 1:
		err = checkKey(ids[0])
	default:
		err = refusal(codes.InvalidArgument, KeyInvalid, 0, "the call has %d metadata %s: 1 is allowed", len(ids), Header)
	}
	if err != nil {
		return key, err
	}
	identity, err := i.opts.Identity(ctx)
	if err == nil && (identity == "" || len(identity) > MaxIdentity) {
		err = invalid("the identity has %d bytes: 1 to %d are allowed", len(identity), MaxIdentity)
	}
	key = idem.Key{Scope: i.opts.Scope + "/" + identity, ID: ids[0]}
	if err == nil {
		err = key.Validate()
	}
	if err != nil {
		i.opts.Report(ctx, method, fmt.Errorf("identify the caller: %w", err))
		return key, refusal(codes.PermissionDenied, CallerUnknown, 0, "a key belongs to a caller, and the server cannot tell the caller of this call")
	}
	return key, nil
}

// refuse returns the status that an error of the store is.
func (i *interceptor) refuse(ctx context.Context, method string, err error) error {
	switch {
	case errors.Is(err, idem.ErrReused):
		return refusal(codes.FailedPrecondition, KeyReused, 0, "the key was used for another call: nothing was done")
	case errors.Is(err, idem.ErrInFlight), errors.Is(err, idem.ErrTakenOver):
		return refusal(codes.Aborted, InFlight, i.opts.RetryDelay, "another call works on the key: repeat the call later with the same key")
	}
	i.opts.Report(ctx, method, err)
	if errors.Is(err, pawl.ErrGrace) || errors.Is(err, pawl.ErrUnavailable) || ctx.Err() != nil {
		return refusal(codes.Unavailable, StoreUnavailable, i.opts.RetryDelay, "the store of keys does not answer: this call did nothing, and an earlier call with the key may have been carried out")
	}
	return refusal(codes.Internal, StoreBroken, 0, "the store of keys cannot be used: this call did nothing, and an earlier call with the key may have been carried out")
}

// run has the handler make the response, and keeps it. The handler runs within the claim, not within the
// call of the client, because a repeat of the client needs the response.
func (i *interceptor) run(ctx context.Context, req any, method string, c *idem.Claim, next grpc.UnaryHandler) (any, error) {
	store := context.WithoutCancel(ctx) // each call ends by itself, after a TTL
	defer func() {
		if err := c.Abort(store); err != nil { // nothing after Complete; and a panic goes on
			i.opts.Report(ctx, method, err)
		}
	}()
	response, failed := next(context.WithValue(c.Context(), claimKey{}, c), req)
	if !i.opts.Keep(status.Code(failed)) {
		return response, failed
	}
	text, err := encode(response, failed, i.opts.MaxResponse)
	if err = errors.Join(err, c.Complete(store, text)); err != nil {
		i.opts.Report(ctx, method, err)
	}
	if errors.Is(err, idem.ErrTakenOver) {
		return nil, i.refuse(ctx, method, err)
	}
	return response, failed // also if the store did not answer, because a client that knows does not repeat
}

type claimKey struct{}

// FromContext returns the claim under which a handler runs. The claim has the key, the token and the recovery points. The interceptor
// completes the claim by the response, so the handler calls neither Complete nor Abort.
func FromContext(ctx context.Context) (c *idem.Claim, ok bool) {
	c, ok = ctx.Value(claimKey{}).(*idem.Claim)
	return c, ok
}
