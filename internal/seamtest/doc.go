// Package seamtest holds all services that work in the caller's transaction to one seam. The services are idem with its state machines
// and its stock, the inbox, the outbox with its completion, and the barrier of half messages. The same tests run with every client, and
// with branches of distributed transactions.
package seamtest
