// Package outbox sends messages that are committed together with the rows of a business transaction.
package outbox
