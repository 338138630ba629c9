package queuetest

import (
	"fmt"
	"slices"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// stepTaken is one step with all that is known of it.
type stepTaken struct {
	*machine
	before, after queue.State
	request       queue.Request
	out           queue.Outcome
}

func (s *stepTaken) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\nrequest %+v\nbefore  %+v\nafter   %+v\noutcome %+v\nnow %d, ends %v",
		append([]any{fmt.Sprintf(format, args...)}, s.request, s.before, s.after, s.out, s.now, s.ends)...)
}

// check holds the step against the model, whose error class is want, and
// against every invariant.
func (s *stepTaken) check(want error) {
	s.t.Helper()
	s.checkModel(want)
	s.checkPlaces()
	s.checkExpiry()
	s.checkCapacity()
	s.checkOrder()
	s.checkTokens()
	s.checkMessages()
	s.checkNoLostWakeup()
	s.checkNext()
}

func (s *stepTaken) checkModel(want error) {
	s.t.Helper()
	if class(s.out.Err) != want {
		s.fail("error is %v, the model says %v", s.out.Err, want)
	}
	if s.after.Spec != s.model.spec {
		s.fail("spec is %+v, the model says %+v", s.after.Spec, s.model.spec)
	}
	same := slices.EqualFunc(s.after.Claims, s.model.claims, func(c queue.Claim, m *modelClaim) bool {
		return c.ID == m.id && (c.Token != 0) == m.held
	})
	if !same {
		s.fail("the model says %s", describe(s.model.claims))
	}
}

// checkPlaces: claims keep their order and never change, and a new claim is last. A claim that
// is not stored is not there.
func (s *stepTaken) checkPlaces() {
	s.t.Helper()
	left := s.after.Claims
	if n := len(left); n > 0 && s.find(s.before, left[n-1].ID).ID == "" {
		c := left[n-1]
		want := s.request.Claim
		want.Since, want.Token, want.Granted = s.now, c.Token, s.grantedAt(queue.Claim{}, c)
		if s.request.Op != queue.Enter || s.out.Err != nil || c != want {
			s.fail("claim %+v appeared", c)
		}
		left = left[:n-1]
	}
	var removed []string
	for _, old := range s.before.Claims {
		if len(left) == 0 || left[0].ID != old.ID {
			removed = append(removed, old.ID)
			continue
		}
		old.Granted = s.grantedAt(old, left[0])
		old.Token = left[0].Token
		if left[0] != old {
			s.fail("claim %+v changed", old)
		}
		left = left[1:]
	}
	if len(left) != 0 {
		s.fail("claims are out of order from %+v", left[0])
	}
	told := slices.Clone(s.out.Removed)
	slices.Sort(told)
	slices.Sort(removed)
	if !slices.Equal(told, removed) {
		s.fail("removed %v, said %v", removed, told)
	}
	if len(s.after.Claims) == 0 && s.after.Spec != (engine.Spec{}) {
		s.fail("an empty resource is still a %+v", s.after.Spec)
	}
	if class(s.out.Err) == engine.ErrMismatch && len(s.out.Removed) == 0 && !sameState(s.before, s.after) {
		s.fail("a refused claim changed the resource")
	}
}

// grantedAt is when the claim must have been granted: now, unless it held before.
func (s *stepTaken) grantedAt(before, after queue.Claim) int64 {
	if before.Token == 0 && after.Token != 0 {
		return s.now
	}
	return before.Granted
}

// checkExpiry: no claim of an ended session is left, whether it held or waited.
func (s *stepTaken) checkExpiry() {
	s.t.Helper()
	for _, c := range slices.Concat(s.after.Claims, s.out.Granted, s.out.Told) {
		if s.ends[c.Session] <= s.now {
			s.fail("claim %s of an ended session is there", c.ID)
		}
	}
}

// load is what the owners other than except hold.
func load(claims []queue.Claim, except string) (sum int64) {
	heaviest := make(map[string]int64)
	for _, c := range claims {
		if c.Token != 0 && c.Owner != except {
			heaviest[c.Owner] = max(heaviest[c.Owner], c.Weight)
		}
	}
	for _, w := range heaviest {
		sum += w
	}
	return sum
}

// checkCapacity: exclusion. A claim that weighs it all is alone. Only where the capacity was
// made smaller may more be held than there is. Then nobody is let in until less is held. A
// claim that wants more than all of it is let in alone.
func (s *stepTaken) checkCapacity() {
	s.t.Helper()
	if load(s.after.Claims, "") > s.after.Spec.Capacity {
		for _, g := range s.granted() {
			others := s.otherClaims(g.ID)
			if own(others, g.Owner) < g.Weight && load(others, g.Owner) > 0 {
				s.fail("more is held than there is, and %s was let in", g.ID)
			}
		}
		return
	}
	for _, a := range s.after.Claims {
		for _, b := range s.after.Claims {
			if a.Token != 0 && b.Token != 0 && a.Weight >= s.after.Spec.Capacity && a.Owner != b.Owner {
				s.fail("%s holds all of it and so does %s", a.ID, b.ID)
			}
		}
	}
}

// granted returns the claims that hold now and did not before.
func (s *stepTaken) granted() (claims []queue.Claim) {
	for _, c := range s.after.Claims {
		if c.Token != 0 && s.find(s.before, c.ID).Token == 0 {
			claims = append(claims, c)
		}
	}
	return claims
}

// own is what an owner holds.
func own(claims []queue.Claim, owner string) int64 { return load(claims, "") - load(claims, owner) }

// checkOrder: first come, first served. Only an owner that holds as much already may pass the
// waiters.
func (s *stepTaken) checkOrder() {
	s.t.Helper()
	if s.after.Spec.Barging {
		return
	}
	for _, g := range s.granted() {
		for _, c := range s.after.Claims {
			if c.ID == g.ID {
				break
			}
			if c.Token == 0 && own(s.otherClaims(g.ID), g.Owner) < g.Weight {
				s.fail("%s overtook %s", g.ID, c.ID)
			}
		}
	}
}

func (s *stepTaken) otherClaims(id string) []queue.Claim {
	return slices.DeleteFunc(slices.Clone(s.after.Claims), func(c queue.Claim) bool { return c.ID == id })
}

// checkTokens: a token never changes while its claim holds. A re-entry has the largest
// token of its owner. Any other grant has a larger token than all before.
func (s *stepTaken) checkTokens() {
	s.t.Helper()
	for _, c := range s.after.Claims {
		if was := s.find(s.before, c.ID).Token; was != 0 && was != c.Token {
			s.fail("the token of %s was %v", c.ID, was)
		}
	}
	granted := s.granted() // in the order of the grants
	held := slices.DeleteFunc(slices.Clone(s.after.Claims), func(c queue.Claim) bool {
		return c.Token == 0 || slices.Contains(granted, c)
	})
	last, highest := s.before.Last, s.highest
	for _, g := range granted {
		reenters, largest := false, fence.Token(0)
		for _, c := range held {
			if c.Owner == g.Owner {
				reenters, largest = reenters || c.Weight >= g.Weight, max(largest, c.Token)
			}
		}
		if reenters && g.Token != largest {
			s.fail("%s re-enters with another token than %v", g.ID, largest)
		}
		if !reenters && g.Token <= highest {
			s.fail("the token of %s is not larger than %v", g.ID, highest)
		}
		held = append(held, g)
		highest, last = max(highest, g.Token), max(last, g.Token)
	}
	if s.after.Last != last {
		s.fail("the last token is %v", last)
	}
}

// checkMessages: a new holder is told by the reply or by a message, with the token, and nobody
// else is. Barging claims are told, not handed.
func (s *stepTaken) checkMessages() {
	s.t.Helper()
	want := fence.Token(0)
	if s.request.Op != queue.Leave && s.out.Err == nil {
		want = s.find(s.after, s.request.Claim.ID).Token
	}
	if s.out.Token != want {
		s.fail("the reply says token %v, it is %v", s.out.Token, want)
	}
	granted := s.granted()
	last := -1
	for _, g := range s.out.Granted { // in order of arrival
		i := slices.Index(granted, g)
		if s.after.Spec.Barging || i <= last {
			s.fail("%s was told that it holds", g.ID)
		}
		last = i
	}
	for _, g := range granted {
		if g.ID != s.request.Claim.ID && !slices.Contains(s.out.Granted, g) {
			s.fail("%s holds and was not told", g.ID)
		}
	}
	for _, c := range s.out.Told {
		s.told[c.ID] = true
		asks := s.request.Op == queue.Poll && c.ID == s.request.Claim.ID
		if !s.after.Spec.Barging || c.Token != 0 || asks {
			s.fail("%s was told that there is room", c.ID)
		}
	}
}

// checkNoLostWakeup: the first that waits does not fit, or, where claims help
// themselves, knows that it does.
func (s *stepTaken) checkNoLostWakeup() {
	s.t.Helper()
	first := true
	for _, c := range s.after.Claims {
		if c.Token != 0 {
			continue
		}
		fits := own(s.after.Claims, c.Owner) >= c.Weight || load(s.after.Claims, c.Owner)+min(c.Weight, s.after.Spec.Capacity) <= s.after.Spec.Capacity
		if !fits {
			delete(s.told, c.ID) // it is to be told again
		}
		if first && fits && !(s.after.Spec.Barging && s.told[c.ID]) {
			s.fail("%s fits and waits", c.ID)
		}
		first = false
	}
}

// checkNext: a waiter knows when the first of the claims before it can end.
func (s *stepTaken) checkNext() {
	s.t.Helper()
	id := s.request.Claim.ID
	if s.request.Op == queue.Leave || s.request.Op == queue.Resize || s.out.Err != nil {
		return
	}
	want, ahead := int64(0), true
	for _, c := range s.after.Claims {
		if c.ID == id {
			ahead = false
			continue
		}
		blocks := ahead || c.Token != 0 || s.after.Spec.Barging
		if ends := s.ends[c.Session]; blocks && (want == 0 || ends < want) {
			want = ends
		}
	}
	if s.out.Token != 0 {
		want = 0
	}
	if s.out.Next != want {
		s.fail("it is to look again at %d, not at %d", want, s.out.Next)
	}
}

// checkAskedTwice: a request whose reply was lost may be sent again and counts
// once. (A claim that was there, gave up waiting and asks anew is another
// matter: it may meet an owner that holds by now.)
func (s *stepTaken) checkAskedTwice() {
	s.t.Helper()
	gaveUp := s.request.Op == queue.Enter && s.out.Err != nil && slices.Contains(s.out.Removed, s.request.Claim.ID)
	if gaveUp {
		return
	}
	want := class(s.out.Err)
	if s.request.Op == queue.Leave {
		want = engine.ErrGone
	}
	again, out := queue.Apply(s.after, s.request, s.clock())
	if class(out.Err) != want || out.Token != s.out.Token || !slices.Equal(again.Claims, s.after.Claims) {
		s.fail("asked again: %+v\n%+v", out, again)
	}
}

func describe(claims []*modelClaim) (text string) {
	for _, c := range claims {
		text += fmt.Sprintf("%+v ", *c)
	}
	return text
}
