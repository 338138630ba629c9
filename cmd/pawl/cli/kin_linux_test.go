package cli

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// As process 1 of a container, pawl gets the orphans of its command, which do not stay zombies.
func TestRun_as_process_1_buries_orphans(t *testing.T) {
	t.Parallel()
	container := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 { // another user needs a space of users, too
		container.Cloneflags |= syscall.CLONE_NEWUSER
		container.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		container.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	probe := exec.Command("true")
	probe.SysProcAttr = container
	if err := probe.Run(); err != nil {
		t.Skipf("the kernel makes no namespace of processes here: %v. So pawl was not process 1; TestRun_buries_the_children_of_others ran instead", err)
	}
	const orphans = 5
	cmd := command(t, sqliteStore(t), "run", "x", "--", "sh", "-c",
		`for i in 1 2 3 4 5; do (sleep 1001 &); done; echo $PPID; exec sleep 1000`)
	cmd.SysProcAttr = container
	p := start(t, cmd)
	if parent := p.number(); parent != 1 {
		t.Fatalf("the command is a child of process %d", parent)
	}
	var theirs []string
	eventually(t, "pawl has the orphans", func() bool {
		theirs = childrenOf(t, cmd.Process.Pid)
		return slices.ContainsFunc(theirs, func(c string) bool { return strings.HasSuffix(c, "sleep 1000") }) && len(theirs) == 2+orphans
	})
	for _, c := range theirs {
		if pid, is := strings.CutSuffix(c, " sleep 1001"); is {
			if err := syscall.Kill(atoi(t, strings.Fields(pid)[0]), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "only the guard and the command are left", func() bool {
		theirs = childrenOf(t, cmd.Process.Pid)
		return len(theirs) == 2
	})
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 143 {
		t.Errorf("exit code %d", code)
	}
}

// childrenOf returns the number and the command of each child of a process, also of zombies.
func childrenOf(t *testing.T, pid int) (all []string) {
	t.Helper()
	text, err := exec.Command("ps", "-A", "-o", "ppid=,pid=,args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 2 && atoi(t, fields[0]) == pid {
			all = append(all, strings.Join(fields[1:], " "))
		}
	}
	return all
}
