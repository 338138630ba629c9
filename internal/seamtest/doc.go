// Package seamtest holds all services that work in the caller's transaction to one seam. The same tests run with every
// client, and with branches of distributed transactions.
package seamtest
