//go:build unix

package rowengine

import (
	"net"
	"syscall"
)

// Silent reports whether a connection that nobody reads is open and has nothing
// to read. It asks the operating system only.
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
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN || err == syscall.EINTR
		return true // whatever it was, do not wait
	})
	return quiet && err == nil
}
