package redisstore

import (
	"encoding/json"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

func (o *Options) invalidationPrefix() string { return o.Prefix + "!" }

// invalidation returns the name of the invalidation of a change: the hash tag of the slot, then the change.
func (o *Options) invalidation(n keySlot, c core.Change) string {
	change, err := json.Marshal(c)
	if err != nil {
		panic(err) // texts and numbers have a form in JSON
	}
	return o.invalidationPrefix() + strings.TrimPrefix(string(n), o.Prefix) + string(change)
}

// parseInvalidation returns the change that an invalidation names.
func (o *Options) parseInvalidation(name string) (c core.Change, ok bool) {
	_, change, ok := strings.Cut(strings.TrimPrefix(name, o.invalidationPrefix()), "}")
	return c, ok && json.Unmarshal([]byte(change), &c) == nil
}
