//go:build unix

package rowengine

import (
	"net"
	"syscall"
)

// Silent reports whether a connection is open and has nothing to read. Silent asks the operating
// system only, and waits for nothing.
func Silent(conn net.Conn) bool {
	for {
		wrapped, ok := conn.(interface{ NetConn() net.Conn }) // TLS
		if !ok {
			break
		}
		conn = wrapped.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	// Read would wait for another reader of the connection. pgx leaves a goroutine that reads after a
	// write that took 15 ms.
	err = raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN || err == syscall.EINTR
	})
	return quiet && err == nil
}
