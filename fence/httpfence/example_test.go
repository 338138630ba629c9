package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/fence/httpfence"
)

// A server of reports refuses the holder of token 33, because it was frozen while the holder of
// 34 wrote.
func Example() {
	report := ""
	server := httptest.NewServer(httpfence.Handler(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			report = string(body)
		}),
		new(fence.Memory),
		func(r *http.Request) string { return r.URL.Path },
		nil,
	))
	defer server.Close()

	client := &http.Client{Transport: &httpfence.Transport{}}
	write := func(token fence.Token, text string) error {
		ctx := fence.WithToken(context.Background(), "report", token) // lease.Context(), lease.Token()
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+"/report", strings.NewReader(text))
		if err != nil {
			return err
		}
		reply, err := client.Do(r)
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		fmt.Println(reply.Status)
		return httpfence.CheckResponse(reply)
	}
	if err := write(34, "of the second holder"); err != nil {
		log.Fatal(err)
	}
	err := write(33, "of the first holder, late")
	fmt.Println(errors.Is(err, fence.ErrStale))
	fmt.Println(report)
	// Output:
	// 200 OK
	// 412 Precondition Failed
	// true
	// of the second holder
}
