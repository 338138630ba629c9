package grpcidem

import (
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pawl-go/pawl/idem"
)

// Domain is that of the ErrorInfo in every status of this package.
const Domain = "idem.pawl-go.github.com"

// The reasons in ErrorInfo.
const (
	KeyMissing       = "KEY_MISSING"
	KeyInvalid       = "KEY_INVALID"
	CallerUnknown    = "CALLER_UNKNOWN"
	InFlight         = "IN_FLIGHT"
	KeyReused        = "KEY_REUSED"
	ResponseNotKept  = "RESPONSE_NOT_KEPT"
	StoreUnavailable = "STORE_UNAVAILABLE"
	StoreBroken      = "STORE_BROKEN"
)

// refusal returns the error of a call that the handler does not see. A wait above zero tells the client to try again after it.
func refusal(code codes.Code, reason string, wait time.Duration, format string, args ...any) error {
	is := status.New(code, fmt.Sprintf(format, args...))
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: Domain}}
	if wait > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	}
	if with, err := is.WithDetails(details...); err == nil {
		is = with
	}
	return is.Err()
}

// checkKey refuses keys that metadata does not carry as they are.
func checkKey(key string) error {
	if key == "" || len(key) > idem.MaxPart {
		return refusal(codes.InvalidArgument, KeyInvalid, 0, "%s has %d bytes: 1 to %d are allowed", Header, len(key), idem.MaxPart)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return refusal(codes.InvalidArgument, KeyInvalid, 0, "byte %d of %s is %#x: printable ASCII without spaces is allowed", i, Header, key[i])
		}
	}
	return nil
}
