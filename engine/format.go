package engine

import "fmt"

// format is a variable so that a build can have another one, which tests do:
// -ldflags "-X github.com/pawl-go/pawl/engine.format=3".
var format = "2"

// Format names the layout of what engines write into a store. It changes when a
// client of the layout before could not share locks with one of the layout after.
// 1 is that of the versions that wrote no mark.
func Format() string { return format }

// CheckFormat returns an error that matches [ErrUnsupported] and names both
// formats, when the one found in a store is not that of this build. An engine
// asks when it opens a session, before anything is written.
func CheckFormat(found string) error {
	if found == format {
		return nil
	}
	return fmt.Errorf("%w: the store has format %s of pawl and this build writes format %s: use the same version of pawl everywhere",
		ErrUnsupported, found, format)
}
