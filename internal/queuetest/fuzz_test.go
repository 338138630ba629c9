package queuetest

import "testing"

// FuzzApply reads its input as a sequence of commands, three bytes each after
// one for the resource, and holds every step against the same invariants.
func FuzzApply(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > 3*maxCommands {
			return
		}
		spec := specs[int(data[0]&3)]
		spec.Barging = data[0]&4 != 0
		m := newMachine(t, spec, minting(data[0]>>3)%mintings)
		for data = data[1:]; len(data) >= 3; data = data[3:] {
			m.command(data[0], data[1], data[2])
		}
	})
}

// The commands of the fuzzer.
const (
	cmdEnter byte = iota // a: slot and owner, b: weight and whether to wait
	cmdAgain             // a: claim, b: whether to wait
	cmdLeave             // a: claim
	cmdPoll              // a: claim
	cmdMismatch
	cmdRenew  // a: slot
	cmdExpire // a: slot
	cmdPass   // a: time
	cmdResize // a: capacity, b: whether later clients know of it
	commands
)

const maxCommands = 200 // longer inputs find nothing that short ones do not

func (m *machine) command(op, a, b byte) {
	switch op % commands {
	case cmdEnter:
		all := weights(m.spec)
		m.enter(int(a&3), int(a>>2&3), all[int(b>>1)%len(all)], b&1 == 1)
	case cmdAgain:
		m.enterAgain(int(a), b&1 == 1)
	case cmdLeave:
		m.leave(int(a))
	case cmdPoll:
		m.poll(int(a))
	case cmdMismatch:
		m.mismatch(int(a), int(b))
	case cmdRenew:
		m.renew(int(a))
	case cmdExpire:
		m.expire(int(a))
	case cmdPass:
		m.pass(int64(a)%sessionTTL + 1)
	case cmdResize:
		m.resize(int64(a)%6+1, b&1 == 1)
	}
}

const (
	lock, sem1, sem2, sem5 byte = 0, 1, 2, 3
	bargingBit             byte = 4

	wait, writer = 1, 2 // of a lock's cmdEnter
	owner1       = 1 << 2
	owner2       = 2 << 2
)

var seeds = [][]byte{
	{}, {lock},
	// A mutex: two wait, the holder leaves twice.
	{lock, cmdEnter, 0, writer | wait, cmdEnter, 1, writer | wait, cmdEnter, 2, writer | wait, cmdLeave, 0, 0, cmdLeave, 0, 0},
	// Readers, a writer, a late reader; then the readers die.
	{lock, cmdEnter, 0, wait, cmdEnter, 0, wait, cmdEnter, 1, writer | wait, cmdEnter, 2, wait, cmdExpire, 0, 0, cmdPoll, 3, 0},
	// Downgrade: an owner writes, reads, and leaves the writing side.
	{lock, cmdEnter, owner1, writer, cmdEnter, 1, wait, cmdEnter, owner1, 0, cmdLeave, 0, 0},
	// Two readers both want to write.
	{lock, cmdEnter, owner1, wait, cmdEnter, owner2 | 1, wait, cmdEnter, owner1, writer | wait, cmdEnter, owner2 | 1, writer | wait},
	// Permits: a large request is not passed by a small one.
	{sem5, cmdEnter, 0, 2<<1 | wait, cmdEnter, 1, 4<<1 | wait, cmdEnter, 2, 0<<1 | wait, cmdLeave, 0, 0, cmdPass, 99, 0, cmdPoll, 0, 0},
	// Barging: the told one comes too late.
	{sem1 | bargingBit, cmdEnter, 0, wait, cmdEnter, 1, wait, cmdLeave, 0, 0, cmdEnter, 2, 0, cmdPoll, 0, 0, cmdLeave, 1, 0, cmdPoll, 0, 0},
	// Permits are added, then taken away; a large request waits meanwhile.
	{sem2, cmdEnter, 0, 1<<1 | wait, cmdEnter, 1, 1<<1 | wait, cmdEnter, 2, wait, cmdResize, 3, 1, cmdEnter, 3, 3<<1 | wait, cmdResize, 0, 1, cmdLeave, 0, 0, cmdLeave, 0, 0, cmdLeave, 0, 0},
	// More is held than there is. The leaving client has an owner that waits, behind a dead
	// claim.
	{sem1, cmdEnter, 0, wait, cmdEnter, owner2, wait, cmdEnter, 1, wait, cmdEnter, owner2, wait, cmdResize, 1, 1, cmdResize, 0, 1, cmdExpire, 1, 0, cmdLeave, 1, 0},
	// Asked again, on a store that has no clock for its tokens.
	{sem2 | 2<<3, cmdEnter, 0, wait, cmdAgain, 0, wait, cmdEnter, 1, 1<<1 | wait, cmdAgain, 1, wait, cmdAgain, 1, 0, cmdMismatch, 0, 1, cmdRenew, 0, 0},
}
