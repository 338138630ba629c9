package testservers

import (
	"log"
	"testing"
)

// ForExample stands in for the test that an Example function has not: for the
// shared servers, as in SharedRedis(ForExample()). What would fail a test ends
// the process.
func ForExample() testing.TB { return example{} }

type example struct{ testing.TB }

func (example) Helper() {}

func (example) Fatal(args ...any) { log.Fatal(args...) }
