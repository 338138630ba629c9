package dtx

import "time"

// Status is what the last pass of recovery saw, and what all passes of this process did. These are numbers for a dashboard.
type Status struct {
	Passed time.Time // when the last pass ended, by the clock of this process; zero before the first pass
	Err    error     // of that pass: databases that did not answer

	Prepared   int           // branches that are prepared, on the resources that answered; running transactions have some
	Oldest     time.Duration // how long the oldest of them has been prepared, or on MySQL and MariaDB how long this process has seen it
	Records    int           // decisions to commit whose branches are not known to be finished
	Unknown    []ID          // transactions that wait for an operator
	Heuristics int           // decisions of operators in the log

	Committed  int64 // branches that recovery of this process committed since New
	RolledBack int64 // branches that recovery of this process rolled back since New
}

// Status returns the numbers of recovery. Status sends no request.
func (c *Coordinator) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// note keeps the numbers of a pass.
func (c *Coordinator) note(p *pass, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, s := time.Now(), &c.status
	s.Passed, s.Err = now, err
	s.Committed += int64(p.report.Committed)
	s.RolledBack += int64(p.report.RolledBack)
	was := c.met
	c.met = make(map[string]time.Time)
	s.Prepared, s.Oldest = 0, 0
	for _, branches := range p.last {
		for _, b := range branches {
			name := b.String()
			if _, twice := c.met[name]; twice { // two resources of one MariaDB server
				continue
			}
			met, known := was[name]
			if !known {
				met = now.Add(-max(b.age, 0))
			}
			c.met[name] = met
			s.Prepared++
			s.Oldest = max(s.Oldest, now.Sub(met))
		}
	}
	s.Records, s.Unknown, s.Heuristics = len(p.records), p.report.Unknown, len(p.orders)
}
