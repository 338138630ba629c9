package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestPictures: the pictures of the recipe are trails that the explorer finds.
func TestPictures(t *testing.T) {
	whole := explorer{elections: 1, cuts: true}
	begin := first(Classic, 3)
	onPage(t, "phases", whole.draw(begin, whole.until(t, begin, func(w *world) bool { return w.cut == 0 && w.all(Committed) })))

	// The shortest trail to a split, and then all messages that are on their way.
	split := explorer{elections: 2, cuts: true}
	trail := split.until(t, begin, func(w *world) bool { return w.split() != "" })
	trail = append(trail, split.until(t, split.end(begin, trail), split.rests)...)
	onPage(t, "classic", split.draw(begin, trail))

	// The same steps until the cut. Then the majority decides, and the minority calls an election.
	at := slices.IndexFunc(trail, func(st step) bool { return st.cut != 0 })
	same, begin := trail[:at+1:at+1], first(Quorum, 3)
	quorum := explorer{elections: 6, cuts: true}
	cut := quorum.end(begin, same)
	same = append(same, quorum.until(t, cut, func(w *world) bool {
		large, small := w.undecided()
		return !large && small && w.agents[0].Role == Electing
	})...)
	same = append(same, step{heal: true})
	quorum.cuts = false
	healed := quorum.end(begin, same)
	same = append(same, quorum.until(t, healed, func(w *world) bool { return w.all(Aborted) })...)
	onPage(t, "quorum", quorum.draw(begin, same))
}

// TestClassicCrash: the textbook's protocol splits also in a whole network, if the coordinator dies between two messages.
func TestClassicCrash(t *testing.T) {
	x, begin := explorer{elections: 1}, first(Classic, 3)
	trail := x.until(t, begin, func(w *world) bool {
		return w.agents[0].Role == Attempting && w.agents[1].Phase == Committed && w.agents[2].Phase == Aborted
	})
	t.Logf("agent 0 takes no step after its pre-commit:\n%s", x.tell(begin, trail))
}

// until returns the shortest trail to a world.
func (x *explorer) until(t *testing.T, from world, is func(*world) bool) []step {
	t.Helper()
	got := x.explore(from, most, func(w *world) string {
		if is(w) {
			return "it is found"
		}
		return ""
	})
	if got.fault == "" {
		t.Fatalf("no trail in %d states", got.states)
	}
	return got.trail
}

// end is the world after a trail.
func (x *explorer) end(w world, trail []step) world {
	for _, st := range trail {
		w = x.take(w, st)
	}
	return w
}

func (w *world) all(p Phase) bool {
	for i := range w.n {
		if w.agents[i].Phase != p {
			return false
		}
	}
	return true
}

// picture is a sequence diagram of Mermaid, in one language.
type picture struct {
	*explorer
	language
	strings.Builder
}

func (x *explorer) draw(w world, trail []step) (all text) {
	for l := range all {
		p := picture{explorer: x, language: language(l)}
		p.WriteString("```mermaid\nsequenceDiagram\n")
		for i := range w.n {
			p.line("participant A%d as %s", i, fmt.Sprintf(agentWords[p.language], i))
		}
		for at, now := 0, w; at < len(trail); at++ {
			next := x.take(now, trail[at])
			p.step(&now, &next, trail[at])
			now = next
		}
		p.WriteString("```\n")
		all[l] = p.String()
	}
	return all
}

func (p *picture) line(format string, args ...any) {
	fmt.Fprintf(p, "    "+format+"\n", args...)
}

// step draws a step: the message that came, the change of the agent, and the messages that the cut stops.
func (p *picture) step(before, after *world, st step) {
	switch {
	case st.cut != 0:
		p.line("Note over A0,A%d: %s", before.n-1, fmt.Sprintf(cutWords[p.language], members(before, st.cut, true), members(before, st.cut, false)))
		p.lostInCut(after)
		return
	case st.heal:
		p.line("Note over A0,A%d: %s", before.n-1, healWords[p.language])
		return
	}
	was, is := before.agents[st.agent], after.agents[st.agent]
	if from, _ := before.sender(st); from != st.agent {
		m := st.event
		if m.Kind == VoteYes {
			m.Kind = CanCommit
		}
		arrow := "->>"
		if m.Kind == Yes || m.Kind == Ack || m.Kind == Joined {
			arrow = "-->>"
		}
		p.line("A%d%sA%d: %s", from, arrow, st.agent, p.says(m))
	}
	if note := noteOf(was, is, st.event); note != nil {
		words := note[p.language]
		if strings.Contains(words, "%d") {
			words = fmt.Sprintf(words, is.Elected)
		}
		p.line("Note over A%d: %s", st.agent, words)
	}
	_, messages, _ := was.Step(st.event)
	for _, m := range messages {
		for to := range after.n {
			if to != st.agent && (m.Peer == All || m.Peer == to) && after.side(to) != after.side(st.agent) {
				p.line("A%d--xA%d: %s", st.agent, to, p.says(m))
			}
		}
	}
}

// lostInCut draws the messages that were on their way when the network was cut, and would have changed their receiver.
func (p *picture) lostInCut(w *world) {
	other := explorer{elections: p.elections}
	whole := *w
	whole.cut = 0
	for _, st := range other.all(&whole) {
		if from, _ := w.sender(st); st.crash != none || st.event.Kind == VoteNo || w.side(from) == w.side(st.agent) {
			continue
		} else if next := other.take(whole, st); next.agents[st.agent] != w.agents[st.agent] {
			m := st.event
			if m.Kind == VoteYes {
				m.Kind = CanCommit
			}
			p.line("A%d--xA%d: %s", from, st.agent, p.says(m))
		}
	}
}

// members names the agents of a part, as A0 or A1.
func members(w *world, part uint8, in bool) string {
	var all []string
	for i := range w.n {
		if part>>i&1 != 0 == in {
			all = append(all, fmt.Sprintf("A%d", i))
		}
	}
	return strings.Join(all, " ")
}

// says is a message on its arrow.
func (p *picture) says(m Message) string {
	words := messageWords[m.Kind][p.language]
	switch {
	case m.Kind == Joined && m.Phase == Ready:
		return fmt.Sprintf(readyWords[p.language], m.Election)
	case strings.Contains(words, "%d"):
		return fmt.Sprintf(words, m.Election)
	}
	return words
}

// noteOf is the change of an agent, or nil.
func noteOf(before, after State, e Message) *text {
	switch {
	case after.Phase == Committed && e.Kind == TimeOut:
		return &text{"hears nothing: COMMITS", "超时：提交"}
	case after.Phase == Aborted && e.Kind == TimeOut:
		return &text{"hears nothing: ABORTS", "超时：回滚"}
	case after.Phase == Committed:
		return &text{"commits", "提交"}
	case after.Phase == Aborted:
		return &text{"aborts", "回滚"}
	case after.Role == Voting && before.Role != Voting:
		return &text{"votes yes, and asks", "自己先投赞成票，再问别人"}
	case e.Kind == VoteYes:
		return &text{"stores its yes, which binds", "赞成票落盘，不能反悔"}
	case e.Kind == TimeOut:
		return &text{"hears nothing: calls election %d", "超时：发起选举 %d"}
	case after.Attempt == before.Attempt:
		return nil
	case after.Role == Attempting && after.Phase == PreCommitted:
		return &text{"has all votes: stores PreCommit %d", "票齐了：PreCommit %d 落盘"}
	case after.Role == Attempting:
		return &text{"has a majority, and nobody pre-committed: stores PreAbort %d", "够多数，且没人预提交过：PreAbort %d 落盘"}
	case after.Phase == PreCommitted:
		return &text{"stores PreCommit %d", "PreCommit %d 落盘"}
	}
	return &text{"stores PreAbort %d", "PreAbort %d 落盘"}
}

var (
	agentWords = text{"agent %d", "agent %d"}
	cutWords   = text{"THE NETWORK IS CUT: %s on one side, %s on the other", "网络断开：%s 在一边，%s 在另一边"}
	healWords  = text{"the network is whole again", "网络恢复"}
	readyWords = text{"joined %d: has voted, and no more", "加入 %d：只投过票"}
)

// messageWords are the messages on their arrows. The phases of the textbook have numbers.
var messageWords = map[Kind]text{
	CanCommit: {"1 CanCommit", "1 CanCommit"},
	Yes:       {"yes", "赞成"},
	PreCommit: {"2 PreCommit %d", "2 PreCommit %d"},
	PreAbort:  {"PreAbort %d", "PreAbort %d"},
	Ack:       {"stored %d", "已落盘 %d"},
	Elect:     {"election %d", "选举 %d"},
	Joined:    {"joined %d: has pre-committed or pre-aborted", "加入 %d：预提交或预回滚过"},
	Commit:    {"3 DoCommit", "3 DoCommit"},
	Abort:     {"abort", "回滚"},
}
