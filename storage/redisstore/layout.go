package redisstore

import (
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// Keys. Every name begins with the prefix. What stands in braces is the hash tag: in a
// Cluster names with the same one are in the same slot.
//
//	{registry}version                  another one after each change of the registry
//	{registry}names                    id of the account with a name, a hash
//	{registry}accounts                 accounts by id, a hash of JSON
//	{registry}order                    their ids in the order of creation, a list
//	{registry}owners                   owner's keys by digest, a hash of JSON
//	{registry}owners:<account>         digests of its owner's keys in the order of creation, a list
//	{registry}owner-ids:<account>      digests of its owner's keys by id, a hash
//	{registry}access                   how accounts are signed in to, by id, a hash of JSON
//
//	{<account>}version                 another one after each change of the account
//	{<account>}last                    largest ID and Seqs that were given, a hash
//	{<account>}emails                  user with an email, a hash
//	{<account>}u:<id> p:<id> k:<id>    user, plan, key: JSON
//	{<account>}places                  where the counter of a key is, by its id, a hash (place.go)
//	{<account>}users…  plans  keys…    ids in order, sorted sets; one for each filter
//	{<account>}chores                  what a transaction leaves to do in other slots, a list
//
//	d:<digest>                         account and id of the key that has or had the digest
//
//	{<account>/<user>}c                counters of the user (u) and of its keys (their Seq), a hash
//	{<account>/<user>}t  t:<seq>       tallies of days that are over, of the user and of a key, texts
//	{<account>/<user>}h  h:<seq>       history of the user and of a key, lists, newest last
//	{<account>/<user>}i:<seq> j:<seq>  request ids of a key and those before them, hashes
//	{<account>/<user>}x  x:<seq>       marks of what was deleted a moment ago, or has left
//
//	{m<n>}mark                         shows that a master has lost nothing, a hash (mark.go)
//
//	!{…}…                              said by a transaction to whoever watches; never there

// format is the version of this layout, kept in {registry}format.
const format = "2"

// names are the names of the keys of one slot.
type keySlot string

func (o *Options) registry() keySlot              { return keySlot(o.Prefix + "{registry}") }
func (o *Options) account(account string) keySlot { return keySlot(o.Prefix + "{" + account + "}") }

// usage are the keys in the slot of a user.
func (o *Options) usage(account string, user int64) keySlot {
	return keySlot(o.Prefix + "{" + account + "/" + strconv.FormatInt(user, 10) + "}")
}

// digest is the key that says whose digest it is.
func (o *Options) digest(d core.Digest) string { return o.Prefix + "d:" + encodeDigest(d) }

func encodeDigest(d core.Digest) string { return base64.RawURLEncoding.EncodeToString(d[:]) }

func decodeDigest(s string) (d core.Digest, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	return d, err == nil && copy(d[:], b) == len(d) && len(b) == len(d)
}

func (n keySlot) key(name string) string { return string(n) + name }

func (n keySlot) user(id int64) string    { return string(n) + "u:" + strconv.FormatInt(id, 10) }
func (n keySlot) plan(id string) string   { return string(n) + "p:" + id }
func (n keySlot) apiKey(id string) string { return string(n) + "k:" + id }

// users names the index of the users that match. Those with an email are not in one.
func (n keySlot) users(f core.UserFilter) string {
	switch {
	case f.PlanID != "":
		return string(n) + "users:p" + f.PlanID
	case f.OnPlan != "":
		return string(n) + "users:on" + f.OnPlan
	}
	return string(n) + "users"
}

// keys names the index of the keys that match. The plan comes last: whoever asks may
// name one with any characters.
func (n keySlot) keys(f core.KeyFilter) string {
	name := string(n) + "keys"
	if f.UserID != 0 {
		name += ":u" + strconv.FormatInt(f.UserID, 10)
	}
	if f.Status != "" {
		name += ":s" + string(f.Status)
	}
	if f.PlanID != nil {
		name += ":p" + *f.PlanID
	}
	return name
}

// filtersOf returns every filter that selects a key.
func keyFilters(k *core.Key) []core.KeyFilter {
	var all []core.KeyFilter
	for _, user := range []int64{0, k.UserID} {
		for _, plan := range []*string{nil, &k.PlanID} {
			for _, status := range []core.KeyStatus{"", k.Status} {
				all = append(all, core.KeyFilter{UserID: user, PlanID: plan, Status: status})
			}
		}
	}
	return all
}

// Names in the slot of a user.
func (n keySlot) counters() string                      { return string(n) + "c" }
func (n keySlot) pastDays(field string) string          { return string(n) + withField("t", field) }
func (n keySlot) history(field string) string           { return string(n) + withField("h", field) }
func (n keySlot) requestIDs(field string) string        { return string(n) + "i:" + field }
func (n keySlot) earlierRequestIDs(field string) string { return string(n) + "j:" + field }
func (n keySlot) tombstone(field string) string         { return string(n) + withField("x", field) }

// having are the keys of what a user or key has beside its counter.
func (n keySlot) dataKeys(field string) []string {
	if field == userField {
		return []string{n.history(field), n.pastDays(field)}
	}
	return []string{n.history(field), n.pastDays(field), n.requestIDs(field), n.earlierRequestIDs(field)}
}

// userField is the field of the user's own counter; that of a key is its Seq.
const userField = "u"

func withField(name, field string) string {
	if field == userField {
		return name
	}
	return name + ":" + field
}

// lateness is the field of the counters that says by how many seconds an entry of a
// history may be earlier than one before it; it is there when one was.
func latenessField(field string) string {
	if field == userField {
		return "l"
	}
	return "l" + field
}

// historySize is the field of the counters with the size of a history in bytes and its
// number of entries, as of the last check. A history of fewer than 64 entries has none.
func historySizeField(field string) string {
	return "b" + strings.TrimPrefix(latenessField(field), "l")
}

// fieldsOf returns all fields of the counters that a user or key has.
func counterFields(field string) []string {
	fields := []string{latenessField(field), historySizeField(field)}
	for _, f := range dayFields(field) {
		fields = append(fields, f.name)
	}
	return fields
}

// isCounter reports whether a field is that of a counter, with which the others go.
func isCounter(field string) bool {
	return field == userField || '0' <= field[0] && field[0] <= '9'
}

func fieldOf(seq int64) string { return strconv.FormatInt(seq, 10) }
