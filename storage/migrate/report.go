package migrate

// Report says what the target holds, and that it is what the source holds.
type Report struct {
	Accounts  int64 `json:"accounts"`
	OwnerKeys int64 `json:"owner_keys"`
	Plans     int64 `json:"plans"`
	Users     int64 `json:"users"`
	Keys      int64 `json:"keys"`

	// Used is the sum of what was used over all counters of users and keys, in the latest
	// window of each, by period.
	Used map[string]int64 `json:"used"`

	UserHistory HistoryCount `json:"user_history"` // entries in the histories of all users
	KeyHistory  HistoryCount `json:"key_history"`  // of all keys
}

// HistoryCount is how many entries histories have. The target may keep fewer.
type HistoryCount struct {
	Source int64 `json:"source"`
	Target int64 `json:"target"`
}

func (n *HistoryCount) add(more HistoryCount) {
	n.Source += more.Source
	n.Target += more.Target
}
