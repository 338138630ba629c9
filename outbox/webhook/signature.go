package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
)

// The headers of a signed message, as Standard Webhooks names them.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

// Bytes of a secret, as Standard Webhooks bounds them.
const leastSecret, mostSecret = 24, 64

// mostSignatures is how many signatures of a header are read. Anybody can write a longer header without a secret.
const mostSignatures = 16

// ErrSignature says that a message is not signed with the secret, or that its time is too far away. Answer 401.
var ErrSignature = errors.New("the signature is not good")

// ParseSecret reads a secret as Standard Webhooks writes it: "whsec_" and base64, of 24 to 64 bytes. The error matches
// pawl.ErrInvalid and does not show the secret.
func ParseSecret(text string) ([]byte, error) {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
	if err != nil {
		return nil, fmt.Errorf("webhook: %w: the secret is not base64", pawl.ErrInvalid)
	}
	if len(secret) < leastSecret || len(secret) > mostSecret {
		return nil, fmt.Errorf("webhook: %w: the secret has %d bytes: %d to %d are allowed", pawl.ErrInvalid, len(secret), leastSecret, mostSecret)
	}
	return secret, nil
}

// Sign returns the value of the header Webhook-Signature: the HMAC-SHA256 of "ID.TIMESTAMP.BODY", with the
// timestamp in seconds since 1970.
func Sign(secret []byte, id string, at time.Time, body []byte) string {
	return "v1," + base64.StdEncoding.EncodeToString(sum(secret, id, strconv.FormatInt(at.Unix(), 10), body))
}

func sum(secret []byte, id, timestamp string, body []byte) []byte {
	h := hmac.New(sha256.New, secret)
	fmt.Fprintf(h, "%s.%s.", id, timestamp) //nolint:errcheck // a hash never fails
	h.Write(body)                           //nolint:errcheck // as above
	return h.Sum(nil)
}

// Verify checks the signature of a request. The server has read the body before. Any of several secrets may have
// signed, so that secrets can be changed. The time of the sending may be a tolerance away from the clock of
// this machine: 5 minutes are usual. The first 16 signatures of the header are read. The body is hashed once for each secret, whatever
// the header has. The error matches [ErrSignature]. The comparison takes constant time.
func Verify(header http.Header, body []byte, tolerance time.Duration, secrets ...[]byte) error {
	id, timestamp := header.Get(HeaderID), header.Get(HeaderTimestamp)
	at, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || id == "" {
		return fmt.Errorf("webhook: %w: %s or %s is missing or wrong", ErrSignature, HeaderID, HeaderTimestamp)
	}
	if away := time.Since(time.Unix(at, 0)).Abs(); away > tolerance {
		return fmt.Errorf("webhook: %w: the message was sent at another time, %v away", ErrSignature, away.Round(time.Second))
	}
	var sums [][]byte
	for _, secret := range secrets {
		if len(secret) >= leastSecret {
			sums = append(sums, sum(secret, id, timestamp, body))
		}
	}
	n := 0
	for signature := range strings.FieldsSeq(header.Get(HeaderSignature)) {
		if n++; n > mostSignatures {
			break
		}
		text, ok := strings.CutPrefix(signature, "v1,")
		got, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(got) != sha256.Size {
			continue // of a version that this package does not know
		}
		if slices.ContainsFunc(sums, func(sum []byte) bool { return hmac.Equal(got, sum) }) {
			return nil
		}
	}
	return fmt.Errorf("webhook: %w", ErrSignature)
}
