// Package inboxtest holds only tests: consumers of package inbox between real processes, databases and brokers. Processes
// are killed and brokers are frozen while messages are delivered. The whole way from an outbox is tested here, too.
package inboxtest
