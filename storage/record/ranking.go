package record

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// RankName returns the name of a counter in the ranking of its account. Names sort in the order of [core.CounterID.Compare].
func RankName(id core.CounterID) string {
	if id.KeyID == "" {
		return fmt.Sprintf("%020d", id.UserID)
	}
	return "k" + id.KeyID
}

// RankedCounter returns the counter of an account with a name of [RankName].
func RankedCounter(account, name string) (id core.CounterID, err error) {
	id.Account = account
	if key, ok := strings.CutPrefix(name, "k"); ok {
		id.KeyID = key
	} else if id.UserID, err = strconv.ParseInt(name, 10, 64); err != nil {
		return id, ErrDamaged
	}
	return id, nil
}
