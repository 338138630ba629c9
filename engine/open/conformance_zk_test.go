package open_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func zkURL(addrs ...string) string { return "zk://" + strings.Join(addrs, ",") + "?tick=200ms" }

// zkPassword is how a server makes the password of a session from its id, so
// that any server of the ensemble knows it.
func zkPassword(session int64) []byte {
	seed := (session ^ 0xB3415C00 ^ 0x5DEECE66D) & (1<<48 - 1) // java.util.Random
	password := make([]byte, 0, 16)
	for range 4 {
		seed = (seed*0x5DEECE66D + 0xB) & (1<<48 - 1)
		word := int32(seed >> 16)
		for range 4 {
			password = append(password, byte(word))
			word >>= 8
		}
	}
	return password
}

// zkPacket puts the length before a packet.
func zkPacket(fields ...any) []byte {
	var body []byte
	for _, field := range fields {
		switch field := field.(type) {
		case int32:
			body = binary.BigEndian.AppendUint32(body, uint32(field))
		case int64:
			body = binary.BigEndian.AppendUint64(body, uint64(field))
		case []byte:
			body = append(binary.BigEndian.AppendUint32(body, uint32(len(field))), field...)
		}
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// killZooKeeper takes a session over and closes it.
func killZooKeeper(addr, session string) error {
	hex, _, _ := strings.Cut(session, "-")
	id, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	const closeSession = int32(-11)
	for _, packet := range [][]byte{
		zkPacket(int32(0), int64(0), int32(5000), int64(id), zkPassword(int64(id))),
		zkPacket(int32(1), closeSession),
	} {
		if _, err := conn.Write(packet); err != nil {
			return err
		}
		head := make([]byte, 4)
		if _, err := io.ReadFull(conn, head); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(conn, body); err != nil {
			return err
		}
		if len(body) > 16 && binary.BigEndian.Uint64(body[8:]) != id { // the answer to the greeting
			return fmt.Errorf("session %s is not there", session)
		}
	}
	return nil
}

func zkHarness(addrs ...string) *enginetest.Harness {
	return &enginetest.Harness{
		Open: func(t *testing.T) engine.Engine { return connect(t, zkURL(addrs...)) },
		TTL:  2 * time.Second,
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) {
			var proxies []*testservers.Proxy
			var through []string
			for _, addr := range addrs {
				proxy := testservers.NewProxy(t, addr)
				t.Cleanup(proxy.Heal) // so that all that is open can say goodbye
				proxies, through = append(proxies, proxy), append(through, proxy.Addr)
			}
			all := func(do func(*testservers.Proxy)) func() {
				return func() {
					for _, proxy := range proxies {
						do(proxy)
					}
				}
			}
			return connect(t, zkURL(through...)), enginetest.Network{
				Freeze: all((*testservers.Proxy).Freeze), FreezeReplies: all((*testservers.Proxy).FreezeReplies),
				Cut: all((*testservers.Proxy).Cut), Heal: all((*testservers.Proxy).Heal),
			}
		},
		KillSession: func(t *testing.T, session string) {
			if err := killZooKeeper(addrs[0], session); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func TestZooKeeper(t *testing.T) {
	enginetest.Run(t, zkHarness(testservers.SharedZooKeeper(t).Addr))
}

func TestZooKeeper3(t *testing.T) {
	var addrs []string
	for _, node := range testservers.ZooKeeperEnsemble(t) {
		addrs = append(addrs, node.Addr)
	}
	enginetest.Run(t, zkHarness(addrs...))
}
