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
		urls := []string{
			"app:s3cret", ":s3cret", "app:s3cret/0", "app:s3cret,b:1", "app:s3cret?prefix=x", "app:%s3cret", "[app:s3cret", // without a host
			"app:s3cret@", ":s3cret@", "app:s3cret@/0", // the host is empty
			"app:s3cret%zz@h/d", "app:s3cret/x@h/d", "app:s3cret#x@h/d", "app:s3cret?x@h/d", "app:x y:s3cret@h/d", "app:x[s3cret@h/d", // not encoded
			"app:s3cret@h:port/d", "app:s3cret@h:0/d", "app:s3cret@h:99999/d", "app:s3cret@a:b:c/d", "app:s3cret@[h/d", "app:s3cret@h%zz/d",
			"app:12?s3cret", "app:12?s3cret=", "app?s3cret", "app:12?s3cret%zz", "app?s3cret;x", // a ? or / of the password, without a host
			"h?x-password=ab&s3cret", "h?x-password=ab&s3cret=x", "h?password-env=ab&s3cret=x", "h?password-env=ab&s3cret;x", // a & or ;
			"app:s3cret@h/d?x=1", "app:s3cret@h/d?%zz", "app:s3cret@h/d#f", "app:s3cret@h/d/e/f?password-env=PAWL_NONE",
		}
		if scheme == "redis" || scheme == "rediss" {
			urls = append(urls, "app:12/s3cret")
		}
		for _, rest := range urls {
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
