package badgerstore

// Stats says how a store is doing.
type Stats struct {
	LedgerBytes   int64  // the size of the event log, which is the history
	MaxHistory    int64  // the size that it may have, see [Options.MaxHistory]
	UnfoldedBytes int64  // how much of it is not folded yet: it is read when the store is opened
	Folds         uint64 // how often it was folded
	Waits         uint64 // how often a request had to wait until it was
	VerifiedAt    int64  // when the last scrub of all files ended, Unix seconds; 0 before the first one
}

// Stats returns how the store is doing. It is cheap.
func (s *Store) Stats() Stats {
	return Stats{
		LedgerBytes:   s.historyBytes(),
		MaxHistory:    s.retention.most.Load(),
		UnfoldedBytes: s.events.Written() - s.folder.mark.Load(),
		Folds:         s.folder.folds.Load(),
		Waits:         s.folder.waits.Load(),
		VerifiedAt:    s.verified.Load(),
	}
}
