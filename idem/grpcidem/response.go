package grpcidem

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pawl-go/pawl"
)

// The first lines of a kept response. After it is the message as an Any, or a google.rpc.Status.
var (
	isMessage = []byte("grpc/1 message\n")
	isStatus  = []byte("grpc/1 status\n")
	notKept   = []byte("grpc/1 not kept\n")
)

// encode returns the response of a handler as it is kept. With an error it returns that there is none to keep, because the
// call was carried out.
func encode(response any, failed error, most int) ([]byte, error) {
	var message proto.Message
	kind := isMessage
	if failed != nil {
		is, _ := status.FromError(failed) // as gRPC sends it
		message, kind = is.Proto(), isStatus
	} else {
		typed, ok := response.(proto.Message)
		if !ok {
			return notKept, fmt.Errorf("%w: a response of type %T is no message of protobuf", pawl.ErrUnsupported, response)
		}
		packed, err := anypb.New(typed)
		if err != nil {
			return notKept, fmt.Errorf("encode the response: %w", err)
		}
		message = packed
	}
	text, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(bytes.Clone(kind), message)
	if err != nil {
		return notKept, fmt.Errorf("encode the response: %w", err)
	}
	if len(text) > most {
		return notKept, nil
	}
	return text, nil
}

// decode returns a kept response; kept is false if there is none.
func decode(text []byte) (response proto.Message, failed error, kept bool, err error) {
	if bytes.Equal(text, notKept) {
		return nil, nil, false, nil
	}
	if text, ok := bytes.CutPrefix(text, isStatus); ok {
		var is spb.Status
		if err = proto.Unmarshal(text, &is); err == nil && is.Code == int32(codes.OK) {
			err = errors.New("its status is OK")
		}
		return nil, status.ErrorProto(&is), true, mismatch(err)
	}
	if text, ok := bytes.CutPrefix(text, isMessage); ok {
		var packed anypb.Any
		if err = proto.Unmarshal(text, &packed); err == nil {
			response, err = packed.UnmarshalNew()
		}
		return response, nil, true, mismatch(err)
	}
	return nil, nil, false, mismatch(fmt.Errorf("it begins with %.30q", text))
}

func mismatch(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: the key has no response of this package: %w", pawl.ErrMismatch, err)
}

// replay returns a kept response.
func (i *interceptor) replay(ctx context.Context, method string, text []byte) (any, error) {
	response, failed, kept, err := decode(text)
	if err != nil {
		return nil, i.refuse(ctx, method, err)
	}
	if err := grpc.SetHeader(ctx, metadata.Pairs(ReplayedHeader, "true")); err != nil {
		i.opts.Report(ctx, method, err)
	}
	switch {
	case !kept:
		return nil, refusal(codes.FailedPrecondition, ResponseNotKept, 0, "the call was carried out, and its response could not be kept")
	case failed != nil:
		return nil, failed
	}
	return response, nil
}
