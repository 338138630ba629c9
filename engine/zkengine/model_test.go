package zkengine

import (
	"testing"

	"github.com/pawl-go/pawl/enginetest/model"
)

func TestAgainstQueue(t *testing.T) { model.Run(t, shared(t), nil) }
