// Package seamtest holds all services that work in the caller's transaction to one seam: the same tests, with every
// client, and with branches of distributed transactions.
package seamtest
