package open

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// An error of a wrong URL never has a part of the password, whatever the scheme is and wherever the URL is wrong.
func TestNoPasswordInErrors(t *testing.T) {
	for _, scheme := range slices.Sorted(maps.Keys(schemes)) {
		if !schemes[scheme].network {
			continue
		}
		for _, rest := range []string{
			"app:s3cret", ":s3cret", "app:s3cret/0", "app:s3cret,b:1", "app:s3cret?prefix=x", "app:%s3cret", "[app:s3cret", // without a host
			"app:s3cret@", ":s3cret@", "app:s3cret@/0", // the host is empty
			"app:s3cret%zz@h/d", "app:s3cret/x@h/d", "app:s3cret#x@h/d", "app:s3cret?x@h/d", "app:x y:s3cret@h/d", "app:x[s3cret@h/d", // not encoded
			"app:s3cret@h:port/d", "app:s3cret@h:0/d", "app:s3cret@h:99999/d", "app:s3cret@a:b:c/d", "app:s3cret@[h/d", "app:s3cret@h%zz/d",
			"app:s3cret@h/d?x=1", "app:s3cret@h/d?%zz", "app:s3cret@h/d#f", "app:s3cret@h/d/e/f?password-env=PAWL_NONE",
		} {
			eng, err := Open(t.Context(), scheme+"://"+rest)
			if err == nil {
				eng.Close()
			}
			if !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s://%s: %v", scheme, rest, err)
			}
		}
	}
}
