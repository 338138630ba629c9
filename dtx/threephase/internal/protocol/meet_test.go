package protocol

import "testing"

// TestMajorityDecides: from every world, a connected majority decides when each of its agents has timed out once. All of its
// agents may have crashed before, and all messages are lost. Agents without a majority, which are bound, wait.
func TestMajorityDecides(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		agents          int8
		elections, long Election
		each            int
	}{{3, 5, 9, 1}, {4, 3, 5, 4}, {5, 2, 3, 16}} {
		if soak {
			c.elections, c.each = c.long, 1
		}
		m := meetings{explorer: explorer{elections: c.elections}, timers: c.agents, each: c.each, seen: make(map[[mostAgents]State]bool)}
		got := m.explore(first(Quorum, c.agents), most, m.wrong)
		t.Logf("%d agents, elections 1 to %d: %d states, %d combinations of agents, one of %d taken, %d meetings", c.agents, c.elections, got.states, len(m.seen), c.each, m.held)
		if got.fault != "" || !got.whole {
			t.Errorf("%q, whole: %v\n%s", got.fault, got.whole, m.tell(first(Quorum, c.agents), got.trail))
		}
	}
}

// TestMeetings: the check finds agents that decide without a majority, and a majority that waits for ever.
func TestMeetings(t *testing.T) {
	for _, c := range []struct {
		name   string
		mode   Mode
		way    way
		timers int8
	}{
		{"time-outs decide", Classic, right, 3},
		{"no agent times out", Quorum, right, 0},
		{"an election waits for all agents", Quorum, allAgents, 3},
		{"an election needs no majority", Quorum, noQuorum, 3},
		{"bound agents wait for the coordinator", Quorum, twoPhase, 3},
	} {
		m := meetings{explorer: explorer{elections: 2, way: c.way}, timers: c.timers, each: 1, seen: make(map[[mostAgents]State]bool)}
		got := m.explore(first(c.mode, 3), most, m.wrong)
		if got.fault == "" {
			t.Errorf("%s: not found wrong in %d states", c.name, got.states)
		}
		t.Logf("%s, after:\n%s", c.name, m.tell(first(c.mode, 3), got.trail))
	}
}

// meetings let agents of worlds hear of one another only.
type meetings struct {
	explorer
	timers int8                       // so many agents time out, in turn
	seen   map[[mostAgents]State]bool // messages are lost, so agents that met already need not meet again
	each   int                        // one of so many combinations of agents is taken
	held   int
	queue  []sent
	stored int // changes of records
}

// wrong lets the agents of a world meet in all groups, and lets each agent be the first to time out.
func (m *meetings) wrong(w *world) string {
	if m.seen[w.agents] {
		return ""
	}
	m.seen[w.agents] = true
	if len(m.seen)%m.each != 0 {
		return ""
	}
	for group := uint8(1); group < 1<<w.n; group++ {
		for from := range w.n {
			for _, restart := range []bool{false, true} {
				if m.held++; !m.meet(*w, group, from, restart) {
					return "agents wait, or decide, that should not"
				}
			}
		}
	}
	return ""
}

// meet reports whether the agents of a group, which hear of one another only, decide alike if they may decide, and wait else.
// The first that times out is agent from.
func (m *meetings) meet(w world, group uint8, from int8, restart bool) bool {
	size, free := 0, false // free: an agent has decided, or may still abort alone
	for i := range w.n {
		if s := &w.agents[i]; group>>i&1 != 0 {
			if size++; restart {
				*s = New(s.Mode, s.Self, s.N, s.Record)
			}
			free = free || s.Phase.Final() || s.Phase == Initial || s.Role == Voting
		}
	}
	for turn := range m.timers {
		if i := (from + turn) % w.n; group>>i&1 != 0 {
			m.give(&w, i, TimeOut, group)
		}
	}
	var some [Aborted + 1]int
	for i := range w.n {
		if group>>i&1 != 0 {
			some[w.agents[i].Phase]++
		}
	}
	switch {
	case size > int(w.n)/2:
		return some[Committed] == size || some[Aborted] == size
	case !free:
		return some[Committed]+some[Aborted] == 0
	}
	return some[Committed] == 0 || some[Aborted] == 0
}

// sent is a message and its sender.
type sent struct {
	Message
	from  int8
	delay int // how many messages came one after another until this is sent
}

// give gives an agent of a group an event of its own, and the group all messages that follow. Those are in m.queue then.
func (m *meetings) give(w *world, i int8, kind Kind, group uint8) {
	queue := append(m.queue[:0], sent{Message{Kind: kind, Peer: i}, i, 0})
	for at := 0; at < len(queue); at++ {
		message := queue[at]
		for to := range w.n {
			if group>>to&1 == 0 || message.Peer != to && (message.Peer != All || to == message.from) {
				continue
			}
			e := message.Message
			if e.Peer = message.from; e.Kind == CanCommit {
				e.Kind = VoteYes
			}
			next, messages := m.step(m.naively(w.agents[to], e))
			if next.Record != w.agents[to].Record {
				m.stored++
			}
			w.agents[to] = next
			for _, answer := range messages {
				queue = append(queue, sent{answer, to, message.delay + 1})
			}
		}
	}
	m.queue = queue
}
