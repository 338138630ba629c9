package work

// Remembered returns how many pages the queue remembers.
func (q *Queue) Remembered() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}

// Remembered returns how many pages of dead letters the queue remembers.
func (d *DeadLetters) Remembered() int { return d.dead.Remembered() }
