package threephase

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
)

// TestClientOfTLS: a peer that takes connections and says nothing holds no connection of an agent for longer than the time-out, also with TLS.
func TestClientOfTLS(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // the test is over
	o, err := (&Options{TLS: &tls.Config{}, Timeout: 200 * time.Millisecond}).complete()
	if err != nil {
		t.Fatal(err)
	}
	response, err := o.Client.Get("https://" + silent.Addr().String()) //nolint:noctx // the client's own bound counts
	var late net.Error
	if err == nil {
		response.Body.Close() //nolint:errcheck // nothing is read
	}
	if !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("%v", err)
	}
	if _, err := (&Options{TLS: &tls.Config{}, Client: http.DefaultClient}).complete(); !errors.Is(err, pawl.ErrInvalid) {
		t.Errorf("%v", err)
	}
}
