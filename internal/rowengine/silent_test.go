//go:build unix

package rowengine

import (
	"net"
	"testing"
	"time"
)

// Silent does not wait for a goroutine that reads the connection. pgx has such a goroutine after a slow write. So
// on a busy machine a release in row mode waited until the server ended the connection.
func TestSilentBesideAReader(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	read, silent := make(chan error), make(chan bool, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()
	for range 200 { // the reader may need a while until it waits
		time.Sleep(time.Millisecond)
		go func() { silent <- Silent(conn) }()
		select {
		case quiet := <-silent:
			if !quiet {
				t.Fatal("an open connection without a message is not silent")
			}
		case <-time.After(time.Minute):
			t.Fatal("Silent waits for a reader")
		}
	}
	peer.Close()
	if err := <-read; err == nil {
		t.Error("a byte was read that nobody sent")
	}
	if Silent(conn) {
		t.Error("a connection that has ended is silent")
	}
	if err := conn.Close(); err != nil || Silent(conn) {
		t.Errorf("a closed connection is silent, or: %v", err)
	}
}
