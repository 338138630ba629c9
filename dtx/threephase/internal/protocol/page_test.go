package protocol

import (
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the pictures and tables of the recipe")

// language is a page of the recipe.
type language int

const (
	english language = iota
	chinese
)

// pages are the recipe in each language.
var pages = [...]string{english: "three-phases.md", chinese: "three-phases.zh.md"}

// text is something in each language.
type text [len(pages)]string

func number(n int) (all text) {
	for l := range all {
		all[l] = strconv.Itoa(n)
	}
	return all
}

// table is a table of Markdown.
func table(columns []text, rows [][]text) (all text) {
	for l := range all {
		var b strings.Builder
		line := func(cells []text) {
			for _, cell := range cells {
				b.WriteString("| " + cell[l] + " ")
			}
			b.WriteString("|\n")
		}
		line(columns)
		b.WriteString(strings.Repeat("|---", len(columns)) + "|\n")
		for _, row := range rows {
			line(row)
		}
		all[l] = b.String()
	}
	return all
}

// onPage holds the part of the recipe between two comments to the text that the explorer makes.
func onPage(t *testing.T, part string, want text) {
	t.Helper()
	for l, page := range pages {
		file := "../../../../docs/recipes/" + page
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		begin, end := "<!-- "+part+" -->\n", "<!-- /"+part+" -->\n"
		before, rest, found := strings.Cut(string(whole), begin)
		is, after, closed := strings.Cut(rest, end)
		switch {
		case !found || !closed:
			t.Errorf("%s has no place for it: %s ... %s", page, begin, end)
		case is == want[l]:
		case !*update:
			t.Errorf("%s of %s is not what the explorer makes (go test . -update writes it):\n%s", part, page, want[l])
		default:
			if err := os.WriteFile(file, []byte(before+begin+want[l]+end+after), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

var stateColumns = []text{{"agents", "agent 数"}, {"elections, at most", "选举次数上限"}, {"states", "状态数"}, {"splits", "分裂"}}

var splitColumns = []text{{"left out, or done wrong", "少了什么，或错在哪"}, {"steps until the split", "几步分裂"}, {"states seen until then", "到此搜过的状态"}}

// splitRows are the wrong ways, which split.
var splitRows = []struct {
	name      text
	mode      Mode
	way       way
	agents    int8
	elections Election
}{
	{text{"the textbook: time-outs decide", "教科书做法：超时自己决定"}, Classic, right, 3, 2},
	{text{"the last election is left out", "不记最后一次选举（Last_elected）"}, Quorum, noElected, 3, 2},
	{text{"the last election is not stored", "最后一次选举没落盘"}, Quorum, electedForgotten, 3, 2},
	{text{"the last attempt is left out", "不记最后一次尝试（Last_attempt）"}, Quorum, noAttempt, 3, 4},
	{text{"an abort without pre-abort", "不经 PreAbort 直接回滚"}, Quorum, noPreAbort, 3, 4},
	{text{"a decision without a majority", "没有多数派也决定"}, Quorum, noQuorum, 3, 2},
	{text{"half of four agents as a majority", "四个 agent 里两个就算多数"}, Quorum, halfQuorum, 4, 3},
	{text{"an acknowledgement before its record is stored", "还没落盘就确认"}, Quorum, earlyAck, 3, 2},
	{text{"a vote before its record is stored", "还没落盘就投票"}, Quorum, earlyVote, 3, 2},
	{text{"an answer before its record is stored", "还没落盘就应答"}, Quorum, earlyAnswer, 3, 2},
	{text{"a vote that does not bind", "投了赞成票还能反悔"}, Quorum, looseVote, 3, 2},
	{text{"a restarted agent decides", "重启的 agent 自己决定"}, Quorum, restartDecides, 3, 2},
}

var cutColumns = []text{{"protocol", "协议"}, {"cuts", "切法"}, {"that split the decision", "决定分裂"},
	{"that leave the majority waiting", "多数派卡住"}, {"that leave the minority waiting", "少数派等待"}}

var costColumns = []text{{"a commit without a failure", "无故障提交一次"}, {"messages of 3 agents", "3 个 agent 的消息数"}, {"messages of 5 agents", "5 个 agent 的消息数"},
	{"messages in a row until the decision", "到作出决定的串行消息数"}, {"until all agents know", "到全体得知的串行消息数"}, {"durable records of an agent", "每个 agent 落盘次数"}}

// cutRows are the protocols that are cut, and the faults that have to be found.
var cutRows = []struct {
	name          text
	mode          Mode
	way           way
	splits, waits bool // waits: the majority does
}{
	{text{"`Classic`: time-outs decide", "`Classic`：超时自己决定"}, Classic, right, true, false},
	{text{"elections without a majority", "有选举，不要求多数派"}, Quorum, noQuorum, true, false},
	{text{"two-phase commit", "两阶段提交"}, Quorum, twoPhase, false, true},
	{text{"`Quorum`", "`Quorum`"}, Quorum, right, false, false},
}
