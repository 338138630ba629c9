// Package inboxtest holds the sources of package inbox to what they promise: consumers are killed and brokers are frozen while
// messages are delivered, and each message takes effect once.
package inboxtest
