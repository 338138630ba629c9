// Package httpidem makes requests of HTTP take effect once, by the header Idempotency-Key of the draft
// draft-ietf-httpapi-idempotency-key-header-07.
//
// [New] makes the middleware of a server. [Transport] is the side of the client. The transport sends the key that [WithKey] has put
// into the context of a request, and repeats the request with this key.
//
// # What a server replies
//
//   - 400 Bad Request: the key is missing, empty, too long, no string of RFC 9651, or there are two.
//   - 403 Forbidden: Options.Identity does not know the caller.
//   - 409 Conflict, with Retry-After: a request with this key is in flight. The middleware does so too when this server has lost
//     the key to another server, whose reply a repeat gets.
//   - 410 Gone: the request was carried out, and its response was not kept. The response was too large or streamed.
//   - 413 Content Too Large: the body is larger than Options.MaxBody. Nothing was done.
//   - 422 Unprocessable Content: the key was used for a request with another method, target or body.
//   - 503 Service Unavailable, with Retry-After: the store of keys does not answer. This request did nothing. An earlier one
//     with the key may have been carried out, so a client repeats with the same key.
//   - 500 Internal Server Error: the store refuses this program, its client was closed, or the kept response cannot be read.
//     This request did nothing, as above.
//   - Any other reply is that of the handler. If it is a repeat, the header Idempotent-Replayed is true.
//
// Each of these replies has a body of type application/problem+json.
//
// # What is promised
//
//   - Two requests with one key of one caller run the handler at most one at a time. After a response was kept, the
//     handler does not run again until the key expires, see [idem.LeaseOptions].
//   - A repeat gets the same status and the same bytes, and the kept headers with the same values. A response is kept before
//     the client sees it, unless it is streamed.
//   - A client that disconnects ends nothing. The handler goes on, and a repeat gets its response. The context of the handler
//     ends when the claim of the key is lost, and with nothing else. A handler that has to end sooner sets a deadline.
//   - Keys of different callers are different keys, because the caller's identity is a part of each.
//   - A server whose store does not answer refuses requests, unless Options.LetThrough says otherwise.
//
// # What is not promised
//
//   - A server that dies in the handler has its key taken over, and the next request runs the handler again. The effect is
//     applied once only if its receiver records the key: see package idem. A handler finds the claim, with
//     its key and attempts, by [FromContext].
//   - A response that Options.Keep does not keep, such as a 500, lets a repeat run the handler again. The same holds after a panic.
//   - If the store stops to answer while the handler runs, the client gets the response, and the store may not have it.
//     Options.Report is told.
//   - Only the kept headers are replayed. Trailers, informational responses and hijacked connections are not. A response that
//     has a trailer counts as streamed.
//   - The fingerprint of a request has its method, path, query and body, and no header. An API whose hosts or content types
//     differ in meaning has them in Options.Identity.
package httpidem
