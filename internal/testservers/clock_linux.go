package testservers

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockSource is a library that a server loads before libc. The library moves the time of day of that
// process by the seconds in a file. libfaketime does the same, but its clock calls malloc. The
// jemalloc of redis-server reads the clock before malloc works.
const clockSource = `
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *ahead;

__attribute__((constructor)) static void begin(void) {
	int fd = open(getenv("PAWL_TEST_CLOCK"), O_RDONLY);
	void *file = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED) abort();
	ahead = file;
	close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now) {
	int failed = syscall(SYS_clock_gettime, id, now);
	if (!failed && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
	struct timespec t;
	int failed = clock_gettime(CLOCK_REALTIME, &t);
	(void)zone;
	now->tv_sec = t.tv_sec;
	now->tv_usec = t.tv_nsec / 1000;
	return failed;
}

time_t time(time_t *now) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	if (now) *now = t.tv_sec;
	return t.tv_sec;
}
`

// RedisClusterWithClocks starts a Redis Cluster as [RedisCluster] does. [Server.SetClock] sets the
// clocks of its nodes.
func RedisClusterWithClocks(t testing.TB) []*Server {
	t.Helper()
	return redisCluster(t, withClock(t, redisNode()), nil)
}

// withClock makes a server read its time of day through clockSource.
func withClock(t testing.TB, k kind) kind {
	t.Helper()
	compiler, err := exec.Command("go", "env", "CC").Output()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(t.TempDir(), "clock.so")
	words := append(strings.Fields(string(compiler)), "-shared", "-fPIC", "-O1", "-o", library, "-x", "c", "-")
	cc := exec.Command(words[0], words[1:]...)
	cc.Stdin = strings.NewReader(clockSource)
	if text, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", words, err, text)
	}
	k.fill = func(_ kind, _, dir string, _ []int) error {
		return os.WriteFile(filepath.Join(dir, "clock"), make([]byte, 8), 0o600)
	}
	k.env = func(dir string) []string {
		return []string{"LD_PRELOAD=" + library, "PAWL_TEST_CLOCK=" + filepath.Join(dir, "clock")}
	}
	return k
}

// SetClock sets a server's clock off the right time by this duration, in whole seconds. The clock
// goes on from there at once, without a restart.
func (s *Server) SetClock(ahead time.Duration) {
	s.t.Helper()
	file, err := os.OpenFile(filepath.Join(s.own().dir, "clock"), os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second)), 0); err != nil {
		s.t.Fatal(err)
	}
}
