package sqliteengine

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestKernelNamesItsFileSystems(t *testing.T) {
	if number, err := fileSystem("/proc"); err != nil || number != 0x9FA0 {
		t.Errorf("/proc is %#x, %v", number, err)
	}
	if _, err := fileSystem("/proc/none"); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}

func TestClockIsTheTimeSinceBoot(t *testing.T) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	up, err := time.ParseDuration(strings.Fields(string(text))[0] + "s")
	if err != nil {
		t.Fatal(err)
	}
	if off := up - time.Duration(now())*time.Microsecond; off.Abs() > time.Second {
		t.Errorf("%v off", off)
	}
	if boot, err := bootID(); err != nil || len(boot) != 36 {
		t.Errorf("%q, %v", boot, err)
	}
}
