package engine

import "fmt"

// format is a variable so that a build can have another one, which tests do:
// -ldflags "-X github.com/pawl-go/pawl/engine.format=3".
var format = "2"

// Format names the layout of the engines' data in a store. The format changes when a
// client of the old layout could not share locks with a client of the new layout.
// 1 is the format of the versions that wrote no mark.
func Format() string { return format }

// CheckFormat returns an error that matches [ErrUnsupported] and names both
// formats, when the format found in a store is not that of this build. An engine
// calls CheckFormat when it opens a session, before anything is written.
func CheckFormat(found string) error {
	if found == format {
		return nil
	}
	return fmt.Errorf("%w: the store has format %s of pawl and this build writes format %s: use the same version of pawl everywhere",
		ErrUnsupported, found, format)
}
