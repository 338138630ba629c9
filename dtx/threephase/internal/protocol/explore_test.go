package protocol

// key is a world in few bits. Two worlds with one key are equal.
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
	w.elect, w.pre, w.back = uint16(p.take(wide))<<1, uint16(p.take(wide))<<1, uint16(p.take(wide))<<1
	for e := Election(2); e <= x.elections; e++ {
		for i := range w.n {
			if i != w.owner(e) {
				w.joined[e][i] = joinedReply{int8(p.take(2)), int8(p.take(electionBits))}
			}
		}
	}
}

// visited is a set of keys, each with the index of the key from which a step led there. A map of Go takes three times the memory.
type visited struct {
	keys  []key
	from  []uint32
	table []uint32 // indexes into keys plus one, by hash; 0: free
}

func newVisited() *visited {
	return &visited{table: make([]uint32, 1<<12)}
}

// add reports whether the key is new.
func (v *visited) add(k key, from uint32) bool {
	if len(v.keys)*4 > len(v.table)*3 {
		v.grow()
	}
	at := v.find(&k)
	if v.table[at] != 0 {
		return false
	}
	v.keys, v.from = append(v.keys, k), append(v.from, from)
	v.table[at] = uint32(len(v.keys))
	return true
}

// hash mixes all words, each by the finish of a known generator of random numbers, splitmix64.
func (k *key) hash() (h uint64) {
	for _, word := range k {
		h = (h ^ word) + 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// find returns the place of the key in the table, or the free place for it.
func (v *visited) find(k *key) uint64 {
	mask := uint64(len(v.table) - 1)
	at := k.hash() & mask
	for v.table[at] != 0 && v.keys[v.table[at]-1] != *k {
		at = (at + 1) & mask
	}
	return at
}

func (v *visited) grow() {
	v.table = make([]uint32, 2*len(v.table))
	for i := range v.keys {
		v.table[v.find(&v.keys[i])] = uint32(i + 1)
	}
}

// found is the outcome of an exploration.
type found struct {
	states int
	whole  bool   // there are no more states
	fault  string // empty: none
	trail  []step // to the fault, the shortest there is
}

// explore visits every world that steps reach, nearest first, and stops at the first fault or after most worlds.
func (x *explorer) explore(from world, most int, wrong func(*world) string) found {
	v := newVisited()
	v.add(x.pack(&from), 0)
	var w, next world
	for at := 0; at < len(v.keys); at++ {
		x.unpack(v.keys[at], &from, &w)
		if fault := wrong(&w); fault != "" {
			return found{len(v.keys), false, fault, x.trail(v, from, at)}
		}
		if len(v.keys) > most {
			return found{states: len(v.keys)}
		}
		for _, st := range x.all(&w) {
			if x.follow(&w, &next, st) {
				v.add(x.pack(&next), uint32(at))
			}
		}
	}
	return found{states: len(v.keys), whole: true}
}

// trail returns the steps to a world.
func (x *explorer) trail(v *visited, from world, at int) (steps []step) {
	for ; at != 0; at = int(v.from[at]) {
		var w, next world
		x.unpack(v.keys[v.from[at]], &from, &w)
		for _, st := range append([]step(nil), x.all(&w)...) {
			if x.follow(&w, &next, st) && x.pack(&next) == v.keys[at] {
				steps = append([]step{st}, steps...)
				break
			}
		}
	}
	return steps
}
