package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pawl-go/pawl/lb"
)

// tally is what a policy did.
type tally struct {
	policy           lb.Policy
	served           map[string]int // by server
	took             []time.Duration
	failed, repeated int
}

func (t *tally) percentile(p int) time.Duration {
	if len(t.took) == 0 {
		return 0
	}
	sorted := slices.Clone(t.took)
	slices.Sort(sorted)
	return sorted[len(sorted)*p/100].Round(time.Millisecond)
}

func (t *tally) share(id string) int {
	sum := 0
	for _, n := range t.served {
		sum += n
	}
	return t.served[id] * 100 / max(sum, 1)
}

// barWidth is how long the bar of all requests is.
const barWidth = 50

// frame is the picture of now, a line for each server.
func (t *trial) frame() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	is := &t.tally
	var b strings.Builder
	fmt.Fprintf(&b, "\n%v: %d requests, %d repeated, %d failed, half within %v, 99 %% within %v", is.policy, len(is.took), is.repeated, is.failed, is.percentile(50), is.percentile(99))
	if t.stale {
		b.WriteString(" (the store is away)")
	}
	b.WriteByte('\n')
	for _, id := range slices.Concat(early, late) {
		listed := " "
		if t.lives[id] {
			listed = "*"
		}
		share := is.share(id)
		bar := strings.Repeat("█", share*barWidth/100) + strings.Repeat("·", barWidth-share*barWidth/100)
		fmt.Fprintf(&b, " %s%s %s %3d %%  %s\n", listed, id, bar, share, t.fate[id])
	}
	return b.String()
}

// pen draws each picture over the last where the output is a terminal, and else the last only.
type pen struct {
	out      io.Writer
	terminal bool
	lines    int
}

func newPen(out io.Writer) *pen {
	file, ok := out.(*os.File)
	if ok {
		info, err := file.Stat()
		ok = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return &pen{out: out, terminal: ok}
}

func (p *pen) draw(picture string) {
	if p.terminal {
		p.over(picture)
	}
}

func (p *pen) last(picture string) { p.over(picture) }

// over moves up to the first line of the last picture, and clears each line.
func (p *pen) over(picture string) {
	if p.lines > 0 {
		fmt.Fprintf(p.out, "\x1b[%dA", p.lines)
	}
	if p.lines = strings.Count(picture, "\n"); p.terminal {
		picture = strings.ReplaceAll(picture, "\n", "\x1b[K\n")
	}
	fmt.Fprint(p.out, picture)
}

// summarise prints a line for each policy, and returns how many requests failed.
func summarise(out io.Writer, all []tally) (failed int) {
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	ids := slices.Concat(early, late)
	fmt.Fprintf(table, "POLICY\trequests\trepeated\tfailed\thalf within\t99 %% within\t%s %%\t\n", strings.Join(ids, " %\t"))
	for i := range all {
		t := &all[i]
		failed += t.failed
		fmt.Fprintf(table, "%v\t%d\t%d\t%d\t%v\t%v\t", t.policy, len(t.took), t.repeated, t.failed, t.percentile(50), t.percentile(99))
		for _, id := range ids {
			fmt.Fprintf(table, "%d\t", t.share(id))
		}
		fmt.Fprintln(table)
	}
	table.Flush() //nolint:errcheck // to a terminal
	return failed
}
