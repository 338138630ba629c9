// Package inboxtest holds only tests: consumers of package inbox between real processes, databases and brokers. Processes
// are killed and brokers are frozen while messages are delivered.
package inboxtest
