package protocol

import "testing"

// cost is that of a commit in which nothing fails.
type cost struct {
	messages int
	decided  int // messages one after another until the first agent has decided
	all      int // until all agents have
	writes   int // records of each agent that are stored
}

// costOf commits with a number of agents.
func costOf(t *testing.T, way way, n int8) (c cost) {
	t.Helper()
	m, w := meetings{explorer: explorer{way: way}}, first(Quorum, n)
	m.give(&w, 0, VoteYes, 1<<n-1)
	if !w.all(Committed) {
		t.Fatal("not all agents have committed")
	}
	c.writes = m.stored / int(n)
	for _, s := range m.queue[1:] {
		if s.Kind == Commit {
			c.decided, c.all = s.delay-1, s.delay
		}
		if s.Peer == All {
			c.messages += int(n) - 1
		} else {
			c.messages++
		}
	}
	return c
}

// TestCosts counts the messages beside those of two-phase commit.
func TestCosts(t *testing.T) {
	var rows [][]text
	for _, c := range []struct {
		name  text
		way   way
		round int // messages of an agent to or from the coordinator
	}{{text{"two-phase commit", "两阶段提交"}, twoPhase, 3}, {text{"three-phase commit", "三阶段提交"}, right, 5}} {
		var all [mostAgents + 1]cost
		for n := int8(3); n <= mostAgents; n++ {
			if all[n] = costOf(t, c.way, n); all[n].messages != c.round*int(n-1) {
				t.Errorf("%s of %d agents: %+v", c.name[english], n, all[n])
			}
		}
		rows = append(rows, []text{c.name, number(all[3].messages), number(all[5].messages), number(all[3].decided), number(all[3].all), number(all[3].writes)})
	}
	onPage(t, "costs", table(costColumns, rows))
}
