package redisstore

import "time"

// Stats says how a store is doing.
type Stats struct {
	Masters  int  // that are known
	Away     int  // how many of them do not answer
	Warnings int  // settings of masters by which counts may be lost; the log names them
	Lost     bool // Redis has lost data, and every call is refused

	Losses    uint64 // of data, since the store was opened
	Failovers uint64 // and restarts of Redis

	Watching bool // all tell what others change, so that what was read may be kept in memory
}

// Stats returns how the store is doing. It is cheap.
func (s *Store) Stats() (st Stats) {
	w := s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Since(w.begun)
	st.Masters, st.Watching = len(w.masters), len(w.masters) > 0
	st.Lost, st.Losses, st.Failovers = s.refusal() != nil, s.losses.Load(), s.failovers.Load()
	for _, m := range w.masters {
		st.Warnings += m.warnings
		if m.node.away.Load() != nil {
			st.Away++
		}
		st.Watching = st.Watching && time.Duration(m.trustedUntil.Load()) > now
	}
	return st
}
