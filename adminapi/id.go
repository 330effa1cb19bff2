package adminapi

import (
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// ofUser calls h with the user id in the path. Only the decimal form without leading zeros is an id.
func ofUser(h func(c *call, id int64) error) handler {
	return func(c *call) error {
		text := c.r.PathValue("id")
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id < 1 || strconv.FormatInt(id, 10) != text {
			return core.ErrUserNotFound
		}
		return h(c, id)
	}
}

func ofPlan(h func(c *call, id string) error) handler { return ofID(core.ErrPlanNotFound, h) }

func ofKey(h func(c *call, id string) error) handler { return ofID(core.ErrKeyNotFound, h) }

func ofID(missing error, h func(c *call, id string) error) handler {
	return func(c *call) error {
		id := c.r.PathValue("id")
		if !isID(id) {
			return missing
		}
		return h(c, id)
	}
}

const (
	maxID   = 64
	idBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
)

// isID reports whether s has the form of a plan or key id. Other strings never reach a store.
func isID(s string) bool {
	return s != "" && len(s) <= maxID && strings.Trim(s, idBytes) == ""
}
