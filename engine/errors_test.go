package engine_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// TestGraceErrorSaysNoNegativeTime: however long a grace is, its text counts up, and rounds up.
func TestGraceErrorSaysNoNegativeTime(t *testing.T) {
	for _, age := range []time.Duration{engine.Unknown, 0, time.Second, math.MaxInt64} {
		for left, want := range map[time.Duration]string{
			1: "in 1s", time.Second: "in 1s", time.Second + 1: "in 2s", math.MaxInt64 - time.Second: "in 2562047h", math.MaxInt64: "in 2562047h",
		} {
			text := (&engine.GraceError{Grace: engine.Grace{Age: age, Left: left}}).Error()
			if strings.Contains(text, "-") || !strings.Contains(text, want) || strings.Contains(text, "ago") != (age >= 0) {
				t.Errorf("age %d, left %d: %s", age, left, text)
			}
		}
	}
}
