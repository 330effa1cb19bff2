package core

// UserFilter selects users. At most one member is set.
type UserFilter struct {
	Email      string // the whole address, compared by [FoldEmail]
	ExternalID string // the whole external id, compared byte by byte
	PlanID     string // users with this PlanID
	OnPlan     string // users with this PlanID, or with a key that has this PlanID
	Anchored   bool   // users with Anchors
}

// Duplicate returns the error of a second user that matches a filter of [User.UniqueFilters].
func (f UserFilter) Duplicate() error {
	if f.Email != "" {
		return ErrDuplicateEmail
	}
	return ErrDuplicateExternalID
}

// KeyFilter selects keys that match every member that is set. PlanID and Status are both set only with a UserID.
type KeyFilter struct {
	UserID int64     // 0 for any
	PlanID *string   // nil for any, "" for keys without a plan of their own
	Status KeyStatus // "" for any

	UnderPlan string // the plan that limits the key: its own, or without one the plan of its user; "" for any. Only Status may be set with it
	HintTail  string // the last HintTailLength bytes of the hint, "" for any; no other member may be set with it
}
