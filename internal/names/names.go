// Package names has the lists of engines whose store tells all names at once.
package names

import "iter"

// Of yields the names that list returns, then its error. List is called when the caller iterates.
func Of(list func() ([]string, error)) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		names, err := list() // all of them first: yield may want the connection
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}
