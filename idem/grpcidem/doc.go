// Package grpcidem makes unary calls of gRPC take effect once, by the metadata idempotency-key.
//
// [UnaryServer] makes the interceptor of a server, and [UnaryClient] that of a client. The client sends the
// key that [WithKey] has put into the context of a call. The retries of gRPC itself, by a retryPolicy of the service config, are below the interceptor.
// So they keep the key. List UNAVAILABLE and ABORTED there.
//
// # What a server returns
//
// Every status of the interceptor has an ErrorInfo of the domain [Domain] with one of these reasons:
//
//   - InvalidArgument, KEY_MISSING or KEY_INVALID: there is no key, there are two, or the key is empty or too long.
//   - PermissionDenied, CALLER_UNKNOWN: Options.Identity does not know the caller.
//   - Aborted, IN_FLIGHT, with RetryInfo: a call with this key is in flight, or another server has taken the key over.
//   - FailedPrecondition, KEY_REUSED: the key was used for a call of another method, or with another message. This is not
//     InvalidArgument, because the message is good and the state of the server refuses it.
//   - FailedPrecondition, RESPONSE_NOT_KEPT: the call was carried out, and its response was too large to be kept.
//   - Unavailable, STORE_UNAVAILABLE, with RetryInfo: the store of keys does not answer. This call did nothing. An earlier one
//     with the key may have been carried out, so a client repeats with the same key.
//   - Internal, STORE_BROKEN: the store refuses this program, the message cannot be kept, or the kept response cannot be read.
//     This call did nothing, as above.
//
// # What is promised
//
//   - Two calls with one key of one caller run the handler at most one at a time. After a response was kept, the handler does not run
//     again until the key expires.
//   - A repeat gets the kept status with its details, or the kept message. The header idempotent-replayed is then true.
//   - A call that its client cancels goes on, and a repeat gets its response. The context of the handler ends with the claim.
//
// # What is not promised
//
//   - A server that dies in the handler has its key taken over, and the next call runs the handler again. A handler finds
//     the claim, with its key and attempts, by [FromContext]: see package idem.
//   - A status that Options.Keep does not keep, such as Unavailable, lets a repeat run the handler again.
//   - Headers and trailers that the handler sends are not kept.
//   - The fingerprint is made of the encoded message. Another version of package protobuf may encode it differently. A repeat in
//     the middle of such an update is then refused as KEY_REUSED, and does not run twice.
//   - Streams pass as they are: they have no interceptor here.
package grpcidem
