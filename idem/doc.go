// Package idem makes an operation take effect once, whatever is retried.
package idem
