// Package explore takes every step of every state of a protocol. A protocol of several processes is a state with all
// of them, and with the messages that are on their way.
package explore

// Result is the outcome of an exploration.
type Result[S comparable] struct {
	States int    // how many states there are, or were seen until the fault
	Fault  string // the first fault, after the smallest number of steps; empty: none
	Trail  []S    // the states from the first one to the fault
}

// All visits every state that steps reach from first, and stops at the first fault. Steps adds the states that one step
// makes of a state. Wrong names the fault of a state, or returns "". All stops without a fault after most states: then
// States is larger than most.
func All[S comparable](first S, most int, steps func(s S, add func(S)), wrong func(S) string) Result[S] {
	from := map[S]S{first: first}
	for queue := []S{first}; len(queue) > 0 && len(from) <= most; queue = queue[1:] {
		s := queue[0]
		if fault := wrong(s); fault != "" {
			return Result[S]{len(from), fault, trail(from, s)}
		}
		steps(s, func(next S) {
			if _, seen := from[next]; !seen {
				from[next] = s
				queue = append(queue, next)
			}
		})
	}
	return Result[S]{States: len(from)}
}

func trail[S comparable](from map[S]S, s S) (all []S) {
	for {
		all = append([]S{s}, all...)
		if from[s] == s {
			return all
		}
		s = from[s]
	}
}
