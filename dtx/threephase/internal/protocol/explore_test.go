package protocol

import "github.com/pawl-go/pawl/dtx/internal/explore"

// key is a world in few bits, so that millions fit into memory. Two worlds with one key are equal.
type key [5]uint64

// packer writes numbers of few bits.
type packer struct {
	key
	at int
}

func (p *packer) put(value uint64, width int) {
	word, shift := p.at/64, p.at%64
	p.key[word] |= value << shift
	if shift+width > 64 {
		p.key[word+1] |= value >> (64 - shift)
	}
	p.at += width
}

func (p *packer) take(width int) uint64 {
	word, shift := p.at/64, p.at%64
	value := p.key[word] >> shift
	if shift+width > 64 {
		value |= p.key[word+1] << (64 - shift)
	}
	p.at += width
	return value & (1<<width - 1)
}

// electionBits is enough for mostElections.
const electionBits = 4

func bit(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

// pack makes a key, or panics if the world is too large.
func (x *explorer) pack(w *world) key {
	var p packer
	n, wide := int(w.n), int(x.elections)
	for i := range n {
		s := &w.agents[i]
		p.put(uint64(s.Phase), 3)
		p.put(uint64(s.Elected), electionBits)
		p.put(uint64(s.Attempt), electionBits)
		p.put(uint64(s.Role), 2)
		p.put(uint64(s.Heard), n)
		p.put(uint64(s.Best.Phase), 3)
		p.put(uint64(s.Best.Attempt), electionBits)
		p.put(uint64(s.Best.Elected), electionBits)
		p.put(uint64(w.ack[i]>>1), wide)
	}
	p.put(bit(w.can)|bit(w.commit)<<1|bit(w.abort)<<2, 3)
	p.put(uint64(w.yes), n)
	p.put(uint64(w.cut), n)
	p.put(uint64(w.elect>>1), wide)
	p.put(uint64(w.pre>>1), wide)
	p.put(uint64(w.back>>1), wide)
	for e := Election(2); e <= x.elections; e++ {
		for i := range w.n {
			if r := w.joined[e][i]; i != w.owner(e) {
				p.put(uint64(r.phase), 2) // Ready, PreCommitted or PreAborted
				p.put(uint64(r.attempt), electionBits)
			}
		}
	}
	return p.key
}

// unpack is the inverse of pack. The world like has the same agents and mode.
func (x *explorer) unpack(k key, like, w *world) {
	p := packer{key: k}
	*w = *like
	n, wide := int(w.n), int(x.elections)
	for i := range n {
		s := &w.agents[i]
		s.Phase = Phase(p.take(3))
		s.Elected = Election(p.take(electionBits))
		s.Attempt = Election(p.take(electionBits))
		s.Role = Role(p.take(2))
		s.Heard = uint8(p.take(n))
		s.Best.Phase = Phase(p.take(3))
		s.Best.Attempt = Election(p.take(electionBits))
		s.Best.Elected = Election(p.take(electionBits))
		w.ack[i] = uint16(p.take(wide)) << 1
	}
	bits := p.take(3)
	w.can, w.commit, w.abort = bits&1 != 0, bits&2 != 0, bits&4 != 0
	w.yes = uint8(p.take(n))
	w.cut = uint8(p.take(n))
	w.elect, w.pre, w.back = uint16(p.take(wide))<<1, uint16(p.take(wide))<<1, uint16(p.take(wide))<<1
	for e := Election(2); e <= x.elections; e++ {
		for i := range w.n {
			if i != w.owner(e) {
				w.joined[e][i] = joinedReply{int8(p.take(2)), int8(p.take(electionBits))}
			}
		}
	}
}

// found is the outcome of an exploration.
type found struct {
	states int
	whole  bool   // there are no more states
	fault  string // empty: none
	trail  []step // to the fault, the shortest there is
}

// explore visits every world that steps reach, and stops at the first fault or after most worlds.
func (x *explorer) explore(from world, most int, wrong func(*world) string) found {
	var w, next world
	got := explore.All(x.pack(&from), most, func(k key, add func(key)) {
		x.unpack(k, &from, &w)
		for _, st := range x.all(&w) {
			if x.follow(&w, &next, st) {
				add(x.pack(&next))
			}
		}
	}, func(k key) string {
		x.unpack(k, &from, &w)
		return wrong(&w)
	})
	return found{got.States, got.Fault == "" && got.States <= most, got.Fault, x.steps(from, got.Trail)}
}

// steps returns the steps between worlds that follow one another.
func (x *explorer) steps(from world, trail []key) (steps []step) {
	var w, next world
	for i := 1; i < len(trail); i++ {
		x.unpack(trail[i-1], &from, &w)
		for _, st := range x.all(&w) {
			if x.follow(&w, &next, st) && x.pack(&next) == trail[i] {
				steps = append(steps, st)
				break
			}
		}
	}
	return steps
}
