package testservers

import (
	"log"
	"testing"
)

// ForExample stands in for the test that an Example function lacks. ForExample gives examples the shared
// servers, as in SharedRedis(ForExample()). A failure ends the process.
func ForExample() testing.TB { return example{} }

type example struct{ testing.TB }

func (example) Helper() {}

func (example) Fatal(args ...any) { log.Fatal(args...) }
