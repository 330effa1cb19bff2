package migrate

// Report counts the content of the target, which is that of the source.
type Report struct {
	Accounts  int64 `json:"accounts"`
	OwnerKeys int64 `json:"owner_keys"`
	Plans     int64 `json:"plans"`
	Users     int64 `json:"users"`
	Keys      int64 `json:"keys"`

	// Used is the sum of the usage of all counters of users and keys in their latest window, by period.
	Used map[string]int64 `json:"used"`

	UserHistory HistoryCount `json:"user_history"` // entries in the histories of all users
	KeyHistory  HistoryCount `json:"key_history"`  // of all keys
}

// HistoryCount is a number of history entries. The target may keep fewer.
type HistoryCount struct {
	Source int64 `json:"source"`
	Target int64 `json:"target"`
}

func (n *HistoryCount) add(more HistoryCount) {
	n.Source += more.Source
	n.Target += more.Target
}
