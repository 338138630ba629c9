package docs_test

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bilingual are the pages in two languages: the translation of PAGE.md is PAGE.zh.md.
var bilingual = []string{"../README", "choosing", "recipes/ids", "recipes/idempotency", "recipes/outbox", "recipes/transactions", "recipes/three-phases", "recipes/balancing"}

var (
	anyHeading = regexp.MustCompile(`(?m)^(#+) `)
	anyBlock   = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	remark     = regexp.MustCompile(`(?m)(^|\s+)(//|#).*$`) // the // of a URL begins none
	image      = regexp.MustCompile(`(?m)^\s*(participant \w+|Note over [\w,]+|\w+-[->x]+\w+).*$`)
)

// TestTranslations: both languages have the same headings, by number, order and level, and the
// same commands and code, but for the comments. A picture has the same arrows.
func TestTranslations(t *testing.T) {
	for _, page := range bilingual {
		ours, theirs := read(t, page+".md"), read(t, page+".zh.md")
		if is, want := levels(theirs), levels(ours); !slices.Equal(is, want) {
			t.Errorf("%s.zh.md has the headings %v, not %v", page, is, want)
		}
		is, want := codeOf(theirs), codeOf(ours)
		if len(is) != len(want) {
			t.Fatalf("%s.zh.md has %d blocks of code, not %d", page, len(is), len(want))
		}
		for i := range want {
			if is[i] != want[i] {
				t.Errorf("%s.zh.md: block %d differs in more than comments:\n%s\nnot\n%s", page, i+1, is[i], want[i])
			}
		}
		if is, want := tableRows(theirs), tableRows(ours); is != want {
			t.Errorf("%s.zh.md has %d rows of tables, not %d", page, is, want)
		}
	}
}

func levels(text string) (all []string) {
	for _, h := range anyHeading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all = append(all, h[1])
	}
	return all
}

// codeOf returns the blocks without their comments, and pictures without their words.
func codeOf(text string) (all []string) {
	for _, b := range anyBlock.FindAllStringSubmatch(text, -1) {
		code := remark.ReplaceAllString(b[2], "")
		if b[1] == "mermaid" {
			code = image.ReplaceAllString(b[2], "$1")
		}
		all = append(all, b[1]+"\n"+code)
	}
	return all
}

// TestCodeOf: a comment is left out, and a URL is not.
func TestCodeOf(t *testing.T) {
	got := codeOf("```sh\n# first\ncurl http://a/b#c  # a remark\n\n// last\n```\n")
	if want := []string{"sh\n\ncurl http://a/b#c\n"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func tableRows(text string) (n int) {
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "|") {
			n++
		}
	}
	return n
}

// inChinese returns a generated table with the words of chinese; a cell that chinese does not
// know stays as it is.
func inChinese(table string) string {
	lines := strings.Split(table, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		for j, cell := range cells {
			parts := strings.Split(cell, ", ")
			if whole := chinese[cell]; whole != "" {
				parts = []string{whole}
			}
			for k, part := range parts {
				parts[k] = cmp.Or(chinese[part], part)
			}
			cells[j] = strings.Join(parts, "、")
		}
		lines[i] = "| " + strings.Join(cells, " | ") + " |"
	}
	return strings.Join(lines, "\n")
}

// chinese are the words of the generated tables.
var chinese = map[string]string{
	"store": "存储", "Shared by": "共享范围", "Where tokens come from": "令牌来源", "Waiters are woken by": "怎样唤醒等待者",
	"The clock that ends a dead session": "判定会话过期的时钟",
	"May forget grants in a restart":     "重启会不会忘记锁",
	"A change of the store's leader":     "主节点切换",
	"Round trips to lock + unlock":       "加锁 + 解锁的往返次数",
	"What it lacks":                      "不支持",
	"Shortest TTL":                       "最短 TTL",
	"lacks":                              "不支持",
	"policy":                             "策略",
	"share of a":                         "a 的占比",
	"share of e":                         "e 的占比",
	"p99":                                "p99",
	"share of e, when it is slow":        "e 变慢后 e 的占比",
	"p99, when e is slow":                "e 变慢后的 p99",
	"because":                            "原因",
	"one process":                        "单进程",
	"one machine":                        "单机",
	"network":                            "网络",
	"durable sequence":                   "持久的序号",
	"server clock":                       "服务器时钟",
	"message with the grant":             "消息直接带着锁",
	"watch, then one read":               "watch，然后读一次",
	"the server's lock queue":            "服务器的锁队列",
	"one poll a process":                 "每个进程一个轮询",
	"monotonic":                          "单调时钟",
	"time of day":                        "系统时间",
	"end of the connection":              "连接断开",
	"what clients observed":              "各客户端的观察",
	"no clock in the store says when the time is over": "存储没有时钟，没法知道时间到没到",
	"no":                               "不会",
	"yes: then it has a restart grace": "会；之后有一段宽限期",
	"single":                           "无（单点）",
	"keeps grants":                     "不丢锁",
	"may lose the last grants":         "可能丢掉最后几把锁",
	"a minority may fail":              "允许少数节点故障",
	"nothing":                          "无",
	"minimum hold":                     "最短持有时间",
	"order of arrival":                 "先到先得",
	"semaphores":                       "信号量",
	"shared locks":                     "共享锁",
	"versioned values":                 "带版本的值",
	"resizing of semaphores":           "调整信号量大小",
	"lock-delay":                       "延迟释放（lock-delay）",
	"postgres, unlogged":               "postgres（unlogged 表）",
	"postgres, pooled":                 "postgres（经连接池代理）",
	"postgres row":                     "postgres 行锁",
	"mysql row":                        "mysql 行锁",
	"memory":                           "内存",
	"a node that starts again forgets a session that nobody renews":                     "节点重启后，会忘掉没人续约的会话",
	"each node has a queue of its own":                                                  "每个节点各有各的队列",
	"two permits over three nodes admit three holders":                                  "两个许可分散在三个节点上，可能同时有三个持有者",
	"readers over independent nodes may hold beside a writer":                           "在互相独立的节点上，读者可能和写者同时持有",
	"a value on independent nodes needs consensus":                                      "在互相独立的节点上存值需要共识",
	"the size is a part of each claim's key, whose revision is its place and its token": "容量写在 key 里，而 key 的 revision 就是排队位置和令牌",
	"the size is a part of each claim's node, whose zxid is its place and its token":    "容量写在节点名里，而节点的 zxid 就是排队位置和令牌",
	"a row is free at the moment when its holder's connection ends":                     "持有者的连接一断，行锁立刻释放",
	"the database promises no order to the waiters for a row":                           "数据库不保证等行锁的先后顺序",
	"a row lock has one holder":                                                         "一行只能被一个事务锁住",
	"a row that is locked for reading lets readers pass a waiting writer without end":   "后来的读者会不断插队，写者可能永远等不到",
	"a row lock stores nothing, and lease mode stores values":                           "行锁不存东西，租约模式才存",
}
