//go:build linux

package docs_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/lb"
)

// The pictures of recipes/balancing.md show how each policy spreads requests over five servers. Server a has the weight 3, and three times
// the slots of others. Server e takes ten times as long from the half of the time on. Requests arrive at random, at 60 % of the load that all servers
// together can take at first.
const (
	servers   = "abcde"
	heavy     = 3 // the weight of a
	slots     = 4 // of the other servers
	takes     = 10 * time.Millisecond
	lasts     = 2 * time.Second
	columns   = 40 // of the picture, in the time
	users     = 60
	firstFew  = 36
	slowTimes = 10
)

// request is a request that is under way.
type request struct {
	pick      lb.Pick
	came, end time.Duration
}

// queue has the request that ends next at its top.
type queue []request

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].end < q[j].end }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(request)) }
func (q *queue) Pop() any          { last := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return last }

// spread is what a policy did.
type spread struct {
	policy  lb.Policy
	first   string                     // the servers of the first picks
	columns [columns][len(servers)]int // picks by time and server
	took    [2][]time.Duration         // before and after e became slow
}

// simulate runs a policy in the fake time of a bubble. One goroutine does everything, so each run is the same.
func simulate(t *testing.T, p lb.Policy) (s spread) {
	s.policy = p
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		var nodes []lb.Node
		free := make(map[string][]time.Duration) // when each slot is free again
		for _, id := range strings.Split(servers, "") {
			n := lb.Node{ID: id, Weight: 1}
			if id == "a" {
				n.Weight = heavy
			}
			nodes, free[id] = append(nodes, n), make([]time.Duration, slots*n.Weight)
		}
		set, err := lb.NewSet(nil, nodes...)
		if err != nil {
			t.Fatal(err)
		}
		balancer, err := lb.New(set, p, &lb.Options{Rand: random.Uint64})
		if err != nil {
			t.Fatal(err)
		}
		every := float64(takes) / (0.6 * slots * (heavy + float64(len(servers)) - 1))
		began, now, under := time.Now(), time.Duration(0), &queue{}
		until := func(end time.Duration) { <-time.After(end - time.Since(began)) }
		for ; now < lasts; now += time.Duration(random.ExpFloat64() * every) {
			for len(*under) > 0 && (*under)[0].end <= now {
				is := heap.Pop(under).(request)
				until(is.end)
				is.pick.Done(lb.Succeeded)
			}
			until(now)
			pick, err := balancer.Pick(lb.Request{Key: strconv.Itoa(random.IntN(users))})
			if err != nil {
				t.Fatal(err)
			}
			heap.Push(under, s.add(pick, free[pick.Node().ID], now))
		}
		for _, is := range *under {
			is.pick.Done(lb.Canceled)
		}
	})
	return s
}

// add gives the request to the slot of its server that is free first.
func (s *spread) add(pick lb.Pick, free []time.Duration, now time.Duration) request {
	id, half, cost := pick.Node().ID, 0, takes
	if now >= lasts/2 {
		if half = 1; id == "e" {
			cost *= slowTimes
		}
	}
	if len(s.first) < firstFew {
		s.first += id
	}
	s.columns[now*columns/lasts][strings.Index(servers, id)]++
	slot := 0
	for i, at := range free {
		if at < free[slot] {
			slot = i
		}
	}
	free[slot] = max(free[slot], now) + cost
	s.took[half] = append(s.took[half], free[slot]-now)
	return request{pick, now, free[slot]}
}

// share is the part of a server in percent, in the half before or after e became slow.
func (s *spread) share(id byte, half int) int {
	of, sum := 0, 0
	for _, column := range s.columns[half*columns/2 : (half+1)*columns/2] {
		for i, n := range column {
			if sum += n; servers[i] == id {
				of += n
			}
		}
	}
	return (of*100 + sum/2) / sum
}

func (s *spread) within(percent, half int) time.Duration {
	sorted := slices.Clone(s.took[half])
	slices.Sort(sorted)
	return sorted[len(sorted)*percent/100].Round(time.Millisecond)
}

// colors are those of the servers, which also people who see no red can tell apart.
var colors = [len(servers)]string{"#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677"}

// The picture in pixels.
const (
	left, top   = 46, 62
	columnWidth = 14
	height      = 150
)

// svg draws the first picks one by one, and below them the shares of all servers over the time.
func (s *spread) svg() string {
	width := left + columns*columnWidth + 16
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="12" role="img">`+"\n", width, top+height+52, width, top+height+52)
	fmt.Fprintf(&b, "<title>%v</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", s.policy)
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"18\" font-size=\"14\" font-weight=\"bold\">%v</text>\n", left, s.policy)
	for i := range s.first {
		at := strings.IndexByte(servers, s.first[i])
		fmt.Fprintf(&b, "<rect x=\"%d\" y=\"26\" width=\"14\" height=\"20\" fill=\"%s\"/><text x=\"%d\" y=\"40\" text-anchor=\"middle\" fill=\"#000000\">%c</text>\n",
			left+i*15, colors[at], left+i*15+7, s.first[i])
	}
	for c, column := range s.columns {
		sum, y := 0, top
		for _, n := range column {
			sum += n
		}
		for i, done := 0, 0; i < len(column); i++ {
			done += column[i]
			end := top + done*height/sum
			if end > y {
				fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", left+c*columnWidth, y, columnWidth-1, end-y, colors[i])
			}
			y = end
		}
	}
	s.words(&b)
	b.WriteString("</svg>\n")
	return b.String()
}

// words writes the axes and the figures.
func (s *spread) words(b *strings.Builder) {
	middle := left + columns/2*columnWidth
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">100 %%</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"end\">0 %%</text>\n", left-4, top+10, left-4, top+height)
	fmt.Fprintf(b, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#000000\" stroke-width=\"2\" stroke-dasharray=\"4\"/>\n", middle, top-6, middle, top+height+38)
	for half, x := range [2]int{left, middle + 8} {
		shares := ""
		for i := range servers {
			shares += fmt.Sprintf("%c %d %%   ", servers[i], s.share(servers[i], half))
		}
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" xml:space=\"preserve\">%s</text>\n", x, top+height+18, strings.TrimRight(shares, " "))
		what := [2]string{"", "e × 10: "}[half]
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\">%sp50 %v, p99 %v</text>\n", x, top+height+36, what, s.within(50, half), s.within(99, half))
	}
}

// TestSpread: the pictures and the table of recipes/balancing.md are what the policies do. With -update the test writes them.
func TestSpread(t *testing.T) {
	table := "| policy | share of a | share of e | p99 | share of e, when it is slow | p99, when e is slow |\n|---|---|---|---|---|---|\n"
	for p := lb.RoundRobin; p <= lb.PeakEWMA; p++ {
		s := simulate(t, p)
		drawn(t, filepath.Join("recipes", "balancing-"+p.String()+".svg"), s.svg())
		table += fmt.Sprintf("| `%v` | %d %% | %d %% | %v | %d %% | %v |\n", p, s.share('a', 0), s.share('e', 0), s.within(99, 0), s.share('e', 1), s.within(99, 1))
	}
	generated(t, "recipes/balancing.md", "spread", table)
	generated(t, "recipes/balancing.zh.md", "spread", inChinese(table))
}

// drawn holds a picture to what it should be.
func drawn(t *testing.T, file, want string) {
	t.Helper()
	is, err := os.ReadFile(file)
	if string(is) == want {
		return
	}
	if !*update {
		t.Errorf("%s is not what the policy does (go test ./docs -update draws it): %v", file, err)
		return
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
