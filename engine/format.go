package engine

import "fmt"

// format is a variable so that tests can build with another format:
// -ldflags "-X github.com/pawl-go/pawl/engine.format=3".
var format = "2"

// Format names the layout of the engines' data in a store. The format changes when a client of the
// old layout could not share locks with a client of the new layout. Versions that wrote no mark
// have format 1.
func Format() string { return format }

// CheckFormat returns an error when the format found in a store is not that of this build. The
// error names both formats and matches [ErrUnsupported]. An engine calls CheckFormat when it opens
// a session, before it writes anything.
func CheckFormat(found string) error {
	if found == format {
		return nil
	}
	return fmt.Errorf("%w: the store has format %s of pawl and this build writes format %s: use the same version of pawl everywhere",
		ErrUnsupported, found, format)
}
