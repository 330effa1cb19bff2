package redisstore

import "time"

// Stats says how a store is doing.
type Stats struct {
	Masters  int  // that are known
	Away     int  // how many of them do not answer
	Watching bool // all tell what others change, so that what was read may be kept in memory
}

// Stats returns how the store is doing. It is cheap.
func (s *Store) Stats() (st Stats) {
	w := s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Since(w.begun)
	st.Masters, st.Watching = len(w.masters), len(w.masters) > 0
	for _, m := range w.masters {
		if m.node.away.Load() != nil {
			st.Away++
		}
		st.Watching = st.Watching && time.Duration(m.sound.Load()) > now
	}
	return st
}
