package cli

import (
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

// voice writes beside the work. The reader may be slow, stopped by Ctrl-S, or gone. That must
// neither delay the end of a command nor hold up a lock.
type voice struct {
	to io.Writer

	mu    sync.Mutex
	queue []string
	quiet chan struct{} // closed when all is written; nil when nothing waits
}

// stderr is that of this process. No other text of pawl is written there; the output of a command of
// idem run is.
var stderr = &voice{to: os.Stderr}

// mostUnsaid is how many texts wait at most for a reader. Later ones are dropped.
const mostUnsaid = 100

// say writes text later, and never blocks.
func (v *voice) say(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.queue) == mostUnsaid {
		return
	}
	v.queue = append(v.queue, text)
	if v.quiet == nil {
		v.quiet = make(chan struct{})
		go v.write()
	}
}

func (v *voice) write() {
	for {
		v.mu.Lock()
		if len(v.queue) == 0 {
			close(v.quiet)
			v.quiet = nil
			v.mu.Unlock()
			return
		}
		text := v.queue[0]
		v.queue = v.queue[1:]
		v.mu.Unlock()
		io.WriteString(v.to, text) //nolint:errcheck // nobody is left to tell
	}
}

// idle reports whether all texts are written.
func (v *voice) idle() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.quiet == nil
}

// flush waits until all is written, but no longer than within.
func (v *voice) flush(within time.Duration) {
	v.mu.Lock()
	quiet := v.quiet
	v.mu.Unlock()
	if quiet == nil {
		return
	}
	select {
	case <-quiet:
	case <-time.After(within):
	}
}

// userInfo is the part of a URL before its host. A wrong URL may have spaces and quotes in its password. So all up to the last @
// counts, in a quoted text or else in the line, because not every error quotes its argument.
var (
	userInfo = regexp.MustCompile(`://.*@`)
	quoted   = regexp.MustCompile(`"(?:\\.|[^"\\\n])*"(?:\S*@)?|://.*@`)
)

func withoutUserInfo(text string) string {
	return quoted.ReplaceAllStringFunc(text, func(at string) string { return userInfo.ReplaceAllString(at, "://...@") })
}

// complain prints an error in one line. The error may quote an argument at a wrong place, such as a URL with a password.
func complain(err error) {
	text := strings.Join(strings.FieldsFunc(withoutUserInfo(err.Error()), func(r rune) bool { return r == '\n' }), "; ")
	stderr.say("pawl: " + printable(text) + "\n")
}
