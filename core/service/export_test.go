package service

// Len returns how many keys the throttle remembers.
func (t *Throttle) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.logs)
}
