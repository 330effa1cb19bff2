package redisstore

import (
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// Names of invalidations.
func (o *Options) userInvalidation(account string, id int64) string {
	return o.invalidationPrefix() + "{" + account + "}u" + strconv.FormatInt(id, 10)
}
func (o *Options) planInvalidation(account, id string) string {
	return o.invalidationPrefix() + "{" + account + "}p" + id
}
func (o *Options) keyInvalidation(account string, d core.Digest) string {
	return o.invalidationPrefix() + "{" + account + "}k" + encodeDigest(d)
}
func (o *Options) ownerKeyInvalidation(d core.Digest) string {
	return o.invalidationPrefix() + "{registry}o" + encodeDigest(d)
}
func (o *Options) accountInvalidation(account, keyPrefix string) string {
	return o.invalidationPrefix() + "{registry}a" + account + "/" + keyPrefix
}
func (o *Options) invalidationPrefix() string { return o.Prefix + "!" }

// parseInvalidation returns the change that an invalidation names.
func (o *Options) parseInvalidation(name string) (c core.Change, ok bool) {
	name, ok = strings.CutPrefix(name, o.invalidationPrefix()+"{")
	account, what, found := strings.Cut(name, "}")
	if !ok || !found || what == "" {
		return c, false
	}
	c.Account = account
	kind, id := what[0], what[1:]
	switch kind {
	case 'u':
		c.UserID, _ = strconv.ParseInt(id, 10, 64)
		return c, c.UserID != 0
	case 'p':
		c.PlanID = id
		return c, true
	case 'k':
		c.Digest, ok = decodeDigest(id)
		return c, ok
	case 'a':
		i := strings.LastIndexByte(id, '/')
		if i < 0 {
			return c, false
		}
		c.Account, c.KeyPrefix = id[:i], id[i+1:]
		return c, c.KeyPrefix != ""
	case 'o':
		c.Account = ""
		c.OwnerKey, ok = decodeDigest(id)
		return c, ok
	}
	return c, false
}
