package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pawl-go/pawl/engine/open"
)

// server is a private server of this program, which listens on 127.0.0.1 only.
type server struct {
	cmd   *exec.Cmd
	dir   string
	ended chan error // has the error of cmd.Wait
}

// folders are where package managers put servers that are not in the PATH.
var folders = []string{"/usr/sbin", "/usr/libexec", "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"}

// find returns where a program is. No name means that none is needed.
func find(program string) (string, error) {
	if program == "" {
		return "", nil
	}
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	for _, folder := range folders {
		found, err := filepath.Glob(filepath.Join(folder, program))
		if err == nil && len(found) > 0 {
			return found[len(found)-1], nil // the newest, in most cases
		}
	}
	return "", fmt.Errorf("%s is not installed", program)
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts finds ports below those of outgoing connections.
func freePorts(n int) (ports []int, err error) {
	for range 1000 {
		port := 10000 + rand.IntN(22000)
		l, err := net.Listen("tcp", local(port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no port is free")
}

// startServer starts a server in a folder of its own and waits until it answers. Fill, when set, fills the folder.
func (p *places) startServer(ctx context.Context, program string, fill func(dir string) *exec.Cmd, args func(dir, port string) []string,
	url func(addr string) string, answers func(context.Context, string) error) (string, error) {
	ports, err := freePorts(1)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "pawl-order-server-")
	if err != nil {
		return "", err
	}
	s := &server{dir: dir, ended: make(chan error, 1)}
	p.mu.Lock()
	p.servers = append(p.servers, s)
	p.mu.Unlock()
	if fill != nil {
		cmd := fill(filepath.Join(dir, "data"))
		if err := unprivileged(cmd, dir); err != nil {
			return "", err
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, out)
		}
	}
	cmd := exec.Command(program, args(dir, strconv.Itoa(ports[0]))...)
	cmd.Dir = dir
	if err := unprivileged(cmd, dir); err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	s.cmd = cmd
	go func() { s.ended <- cmd.Wait() }()
	at := url(local(ports[0]))
	return at, s.await(ctx, at, answers)
}

func (s *server) await(ctx context.Context, url string, answers func(context.Context, string) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := answers(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case why := <-s.ended:
			s.ended <- why
			return fmt.Errorf("the server ended before it answered: %w", errors.Join(why, err))
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the server and removes its files.
func (s *server) stop() error {
	var err error
	if s.cmd != nil {
		err = end(s.cmd, s.ended)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func startPostgres(ctx context.Context, p *places, initdb string) (string, error) {
	initdb, err := filepath.EvalSymlinks(initdb) // postgres is beside the file, and may be on no PATH
	if err != nil {
		return "", err
	}
	return p.startServer(ctx, filepath.Join(filepath.Dir(initdb), "postgres"),
		func(data string) *exec.Cmd {
			return exec.Command(initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
		},
		func(dir, port string) []string {
			return []string{"-D", filepath.Join(dir, "data"), "-p", port, "-h", "127.0.0.1", "-k", "", "-c", "max_connections=400", "-c", "max_prepared_transactions=100", "-c", "log_min_messages=fatal"}
		},
		func(addr string) string { return "postgres://postgres@" + addr + "/postgres" }, databaseAnswers)
}

func startMariaDB(ctx context.Context, p *places, mariadbd string) (string, error) {
	install, err := find("mariadb-install-db")
	if err != nil {
		return "", err
	}
	return p.startServer(ctx, mariadbd,
		func(data string) *exec.Cmd {
			return exec.Command(install, "--no-defaults", "--datadir="+data, "--tmpdir="+filepath.Dir(data), "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
				"--innodb-log-file-size=8M")
		},
		func(dir, port string) []string {
			return []string{"--no-defaults", "--datadir=" + filepath.Join(dir, "data"), "--tmpdir=" + dir, "--port=" + port, "--socket=" + filepath.Join(dir, "my.sock"),
				"--pid-file=" + filepath.Join(dir, "my.pid"), "--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=1000", "--innodb-log-file-size=8M"}
		},
		func(addr string) string { return "mysql://root@" + addr + "/mysql" }, databaseAnswers)
}

func databaseAnswers(ctx context.Context, url string) error {
	d, err := openDatabase(ctx, url)
	if err != nil {
		return err
	}
	return d.db.Close()
}

func startNATS(ctx context.Context, p *places, program string) (string, error) {
	return p.startServer(ctx, program, nil,
		func(dir, port string) []string {
			return []string{"-a", "127.0.0.1", "-p", port, "-js", "-sd", filepath.Join(dir, "data"), "-l", filepath.Join(dir, "log")}
		},
		func(addr string) string { return "nats://" + addr },
		func(_ context.Context, url string) error {
			nc, err := nats.Connect(url)
			if err != nil {
				return err
			}
			defer nc.Close()
			js, err := nc.JetStream()
			if err != nil {
				return err
			}
			_, err = js.AccountInfo()
			return err
		})
}

func startRedis(ctx context.Context, p *places, program string) (string, error) {
	return p.startServer(ctx, program, nil,
		func(dir, port string) []string {
			return []string{"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "yes"}
		},
		func(addr string) string { return "redis://" + addr },
		func(ctx context.Context, url string) error {
			client, err := open.OpenRedis(ctx, url)
			if err == nil {
				client.Close()
			}
			return err
		})
}
