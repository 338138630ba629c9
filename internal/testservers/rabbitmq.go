package testservers

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// epmdKind is the name service of Erlang, without which no RabbitMQ starts. A RabbitMQ that finds none starts a
// daemon, which would stay behind.
var epmdKind = kind{
	name: "epmd", binary: "PAWL_TEST_EPMD", ports: 1,
	args: func(_ string, ports []int) []string {
		return []string{"-port", fmt.Sprint(ports[0]), "-address", "127.0.0.1"}
	},
	ready: func(addr string) error {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			err = conn.Close()
		}
		return err
	},
}

// rabbitmqScript is not the program of the PATH on Debian: that one changes the user, and stays as a parent.
const rabbitmqScript = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// rabbitmqKind is RabbitMQ without plugins. Lines are added to its configuration.
func rabbitmqKind(epmd string, lines ...string) kind {
	program := rabbitmqScript
	if _, err := os.Stat(program); err != nil {
		program = "rabbitmq-server"
	}
	return kind{
		name: "rabbitmq-server", program: program, binary: "PAWL_TEST_RABBITMQ_SERVER", given: "PAWL_TEST_RABBITMQ", ports: 2,
		args:  func(string, []int) []string { return nil },
		fill:  func(_ kind, _, dir string, ports []int) error { return fillRabbitMQ(dir, ports, lines) },
		env:   func(dir string) []string { return rabbitmqEnv(epmd, dir) },
		ready: rabbitmqReady, within: 5 * time.Minute, // 5 s of two processors, which other tests may have
	}
}

func fillRabbitMQ(dir string, ports []int, lines []string) error {
	lines = append([]string{fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d", ports[0]), "log.console = true", "log.file = false"}, lines...)
	for name, text := range map[string]string{
		"rabbitmq.conf":     strings.Join(append(lines, tuned(rabbitmqSettings)...), "\n") + "\n",
		"rabbitmq-env.conf": fmt.Sprintf("NODENAME=pawl%d@localhost\nDIST_PORT=%d\n", ports[0], ports[1]),
		"enabled_plugins":   "[].\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// rabbitmqEnv keeps every file of a server in its folder, and every port on this machine. The folder has the secret
// of the server too, so no other server can join.
func rabbitmqEnv(epmd, dir string) []string {
	_, port, _ := net.SplitHostPort(epmd) //nolint:errcheck // the address of a server
	return []string{
		"HOME=" + dir, "ERL_EPMD_PORT=" + port, "ERL_EPMD_ADDRESS=127.0.0.1",
		"RUNNING_UNDER_SYSTEMD=1", // the script becomes the server, instead of its parent
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(dir, "rabbitmq-env.conf"),
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(dir, "rabbitmq.conf"), "RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(dir, "none.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "enabled_plugins"), "RABBITMQ_FEATURE_FLAGS_FILE=" + filepath.Join(dir, "feature_flags"),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "data"), "RABBITMQ_GENERATED_CONFIG_DIR=" + filepath.Join(dir, "generated"),
		"RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"), "RABBITMQ_LOGS=-",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	}
}

// RabbitMQ starts a private RabbitMQ for one test, with lines for its configuration, such as "max_message_size =
// 65536". The server keeps durable queues over Kill and Restart. A start takes 5 s or more.
func RabbitMQ(t testing.TB, lines ...string) *Server {
	t.Helper()
	return start(t, rabbitmqKind(shared(t, epmdKind).Addr, lines...), nil)
}

// SharedRabbitMQ returns the RabbitMQ of this test process, or the RabbitMQ that PAWL_TEST_RABBITMQ names. That
// server lets guest in with the password guest. Tests use names of their own in it.
func SharedRabbitMQ(t testing.TB) *Server {
	t.Helper()
	if addr := os.Getenv(rabbitmqKind("").given); addr != "" {
		return &Server{Addr: addr, t: t}
	}
	return shared(t, rabbitmqKind(shared(t, epmdKind).Addr))
}

// RabbitMQURL is how to connect to the server or proxy at addr.
func RabbitMQURL(addr string) string { return "amqp://guest:guest@" + addr + "/" }

// RabbitMQControl runs rabbitmqctl for a private RabbitMQ, and waits for its end.
func RabbitMQControl(t testing.TB, s *Server, args ...string) {
	t.Helper()
	if err := run(rabbitmqctl(s, args)); err != nil {
		t.Fatal(err)
	}
}

func rabbitmqctl(s *Server, args []string) *exec.Cmd {
	p := s.own()
	cmd := exec.Command(filepath.Join(filepath.Dir(p.path), "rabbitmqctl"), append([]string{"--quiet", "--node", fmt.Sprintf("pawl%d@localhost", p.ports[0])}, args...)...)
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), p.kind.env(p.dir)...), sysProcAttr()
	return cmd
}

// RabbitMQUnsettled is how many messages a queue of a private RabbitMQ has, with the messages that consumers have not settled. A
// client of AMQP does not see the latter.
func RabbitMQUnsettled(s *Server, queue string) (int, error) {
	var out bytes.Buffer
	cmd := rabbitmqctl(s, []string{"list_queues", "--no-table-headers", "name", "messages"})
	cmd.Stdout = &out
	if err := spawn(cmd); err != nil {
		return 0, err
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%s: %w", cmd.Path, err)
	}
	for line := range strings.Lines(out.String()) {
		var n int
		if rest, found := strings.CutPrefix(line, queue+"\t"); found {
			_, err := fmt.Sscan(rest, &n)
			return n, err
		}
	}
	return 0, fmt.Errorf("no queue %q: %s", queue, &out)
}

// rabbitmqReady logs in. The server listens for clients last. On a busy machine a login takes seconds, when many clients come back at once.
func rabbitmqReady(addr string) error { return rabbitmqLogin(addr, 15*time.Second) }

func rabbitmqLogin(addr string, within time.Duration) error {
	conn, err := amqp.DialConfig(RabbitMQURL(addr), amqp.Config{Dial: amqp.DefaultDial(within)})
	if err != nil {
		return err
	}
	return conn.CloseDeadline(time.Now().Add(within))
}
