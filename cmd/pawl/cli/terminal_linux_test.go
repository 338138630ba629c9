package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pawl-go/pawl/internal/testservers"
)

// screen is a terminal and the text written on it.
type screen struct {
	t      *testing.T
	master *os.File

	mu   sync.Mutex
	text strings.Builder
}

// onTerminal starts a command as the session leader of a terminal of its own.
func onTerminal(t *testing.T, cmd *exec.Cmd) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 200}); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, master: master}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for buffer := make([]byte, 4096); ; {
			n, err := master.Read(buffer)
			s.mu.Lock()
			s.text.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return // nobody has the terminal open any more
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait() //nolint:errcheck // killed
		<-read
		master.Close()
	})
	return s
}

func (s *screen) keys(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// sees waits for text on the screen, and returns all that is there.
func (s *screen) sees(text string) string {
	s.t.Helper()
	return s.matches(regexp.MustCompile(regexp.QuoteMeta(text)))
}

// matches waits until the screen has such a text, and returns all that the screen had.
func (s *screen) matches(text *regexp.Regexp) string {
	s.t.Helper()
	var all string
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		s.mu.Lock()
		all = s.text.String()
		s.mu.Unlock()
		if text.MatchString(all) {
			return all
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%q is not on the screen: %q", text, all)
		}
	}
}

func TestRun_lets_the_command_read_the_terminal(t *testing.T) {
	t.Parallel()
	cmd := command(t, sqliteStore(t), "run", "x", "--", "sh", "-c", `echo up; read line; echo "got $line"`)
	s := onTerminal(t, cmd)
	s.sees("up")
	s.keys("some text\n")
	s.sees("got some text")
}

// In a shell with job control: Ctrl-Z stops the command and pawl, fg continues both, and Ctrl-C
// ends them. While the keys are pressed the shell starts no command: dash would not notice the keys
// then.
func TestRun_on_a_terminal_is_a_job(t *testing.T) {
	t.Parallel()
	run := command(t, sqliteStore(t), "run", "--ttl", "30s", "x", "--", "sh", "-c",
		`echo up; read a; echo "got $a"; read b; echo "also $b"; echo wait; read c`)
	again := filepath.Join(t.TempDir(), "again")
	if err := os.WriteFile(again, []byte("once more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", append([]string{"-mc", `"$@"; echo "first $?"; fg; echo "second $?"
		"$1" run x -- tail -f "$AGAIN"; echo "third $?"`, "sh"}, run.Args...)...)
	cmd.Env = append(run.Env, "AGAIN="+again)
	s := onTerminal(t, cmd)
	s.sees("up")
	s.keys("one\n")
	s.sees("got one")
	s.keys("\x1a")      // Ctrl-Z
	s.sees("first 149") // 128 + SIGTTIN
	s.keys("two\n")
	s.sees("also two")
	s.sees("wait")
	s.keys("\x03") // Ctrl-C
	s.sees("second 130")
	s.sees("once more")
	s.keys("\x03") // before the command has asked for the terminal
	s.sees("third 130")
}

func TestRun_says_on_a_terminal_what_it_waits_for(t *testing.T) {
	t.Parallel()
	overStores(t, func(t *testing.T, store, name string) {
		held(t, store, name)
		p := start(t, command(t, store, "run", name, "--", "true"))
		eventually(t, "one waits", func() bool { return states(t, store, name) == "granted waiting" })
		s := onTerminal(t, command(t, store, "run", name, "--", "echo", "it runs"))
		s.sees("; place 2 of 2")
		p.signal(syscall.SIGINT)
		since := ` for [\d.]+m?s` // since when by the store's clock
		if strings.HasPrefix(store, "etcd:") {
			since = " for an unknown time" // etcd tells no time
		}
		line := "\r\x1b[Kpawl: waiting for " + strconv.Quote(name) + ": held by "
		s.matches(regexp.MustCompile(regexp.QuoteMeta(line) + `\S+ pid \d+: sh` + since + `; place 1 of 1; session ends in (an unknown time|[\d.]+m?s unless renewed)`))
		want(t, 0, store, "break", "--yes", name)
		s.sees("\r\x1b[Kit runs")
		if p.wait(); p.errors() != "" && strings.Contains(p.errors(), "held by") {
			t.Errorf("without a terminal it says %q", p.errors())
		}
	})
}

// A waiter is told the name that its user said, as in all other messages.
func TestElect_and_slot_say_on_a_terminal_what_they_wait_for(t *testing.T) {
	t.Parallel()
	for verb, flags := range map[string][]string{"elect": {"elect"}, "slot": {"slot", "-n", "1"}} {
		store := sqliteStore(t)
		args := append(flags, "x", "--", "sh", "-c", "echo up; exec sleep 1000")
		p := start(t, command(t, store, args...))
		p.line()
		s := onTerminal(t, command(t, store, args...))
		text := s.sees("; place 1 of 1")
		if want := `pawl: waiting for "x": held by `; !strings.Contains(text, want) {
			t.Errorf("%s: the screen has %q, want %q", verb, text, want)
		}
	}
}

func TestRun_says_on_a_terminal_that_the_store_may_have_forgotten(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, command(t, "redis://"+testservers.Redis(t).Addr, "run", "--ttl", "1m", "x", "--", "true"))
	if text := s.sees(mayHaveForgotten); strings.Contains(text, "held by") {
		t.Errorf("the screen has %q", text)
	}
}

// Ctrl-Z stops a candidate also after its first term, and fg continues the candidate.
func TestElect_on_a_terminal_is_a_job(t *testing.T) {
	t.Parallel()
	elect := command(t, sqliteStore(t), "elect", "x", "--", "sh", "-c", `echo "up $((1+1))"`)
	cmd := exec.Command("sh", append([]string{"-mc", `"$@"; echo "first $?"; fg; echo "second $?"`, "sh"}, elect.Args...)...)
	cmd.Env = elect.Env
	s := onTerminal(t, cmd)
	s.sees("campaigning again")
	s.keys("\x1a")      // Ctrl-Z
	s.sees("first 149") // 128 + SIGTTIN
	eventually(t, "the candidate goes on", func() bool { return strings.Count(s.sees("up 2"), "up 2") > 1 })
	s.keys("\x03") // Ctrl-C
	s.sees("second ")
}

// A command of a later term may stop at the terminal as the first could.
func TestElect_passes_no_ignored_signal_on(t *testing.T) {
	t.Parallel()
	s := onTerminal(t, command(t, sqliteStore(t), "elect", "x", "--", "sh", "-c",
		`if [ -e "$1" ]; then grep SigIgn /proc/self/status; exec sleep 1000; fi; touch "$1"; echo up; read line`, "sh", filepath.Join(t.TempDir(), "ran")))
	s.sees("up")
	s.keys("some text\n")
	text := s.sees("SigIgn:")
	found := regexp.MustCompile(`SigIgn:\s+([0-9a-f]{16})`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("the screen has %q", text)
	}
	mask, err := strconv.ParseUint(found[1], 16, 64)
	if err != nil || mask&(1<<(syscall.SIGTTOU-1)) != 0 {
		t.Errorf("the command ignores the signals %x, %v", mask, err)
	}
}
