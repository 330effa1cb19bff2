package redisstore

import (
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// Keys. Every name begins with the prefix. Braces enclose the hash tag: keys with the same tag share a
// slot in a Cluster.
//
//	{registry}version                  random, changes with each write to the registry
//	{registry}version:<account>        the same for the members of the account, its owner's keys and its sign-in data
//	{registry}a:<id>                   account, JSON
//	{registry}o:<n>:<account>/<id>     owner's key, JSON; n is the length of the account's id
//	{registry}i:<account>              sign-in data of an account, JSON
//	{registry}audit:<account>          sorted set: audit log of the account itself, see scripts/batch.lua
//	{registry}accounts                 sorted set: ids of all accounts
//	{registry}owner-keys:<account>     sorted set: the owner's keys of an account
//	{registry}names                    hash: name of an account to its id
//	{registry}owner-digests            hash: digest to owner's key
//	{registry}lease:<name>             the holder of a lease, see scripts/lease.lua
//	{registry}last                     hash: largest number of an account and of an owner's key so far, and the number of removed accounts (D)
//
//	{<account>}version                 random, changes with each write to the account
//	{<account>}last                    hash: largest user ID, plan Seq and key Seq so far
//	{<account>}emails                  hash: email to user ID
//	{<account>}external-ids            hash: external id to user ID
//	{<account>}u:<id> p:<id> k:<id>    user, plan, key: JSON
//	{<account>}t:                      prices, JSON
//	{<account>}w:<id> n:<id> j:<id>    webhook, event, attempt to deliver an event: JSON
//	{<account>}webhooks  events…       sorted sets of ids by number, one of events for each filter
//	{<account>}attempts:<webhook>      sorted set: ids of the attempts in the delivery log of a webhook
//	{<account>}audit                   sorted set: audit log of users, plans, keys, prices and webhooks, as above
//	{<account>}locations               hash: id of a key to the location of its counter (location.go)
//	{<account>}users…  plans  keys…    sorted sets of ids by number, one for each filter
//	{<account>}deleted                 hash: number of a chunk to days or hours of the deleted users, JSON, see record.AddDeleted
//	{<account>}outbox                  list: tasks of the outbox (outbox.go)
//	{<account>}holds                   sorted set: ids of open holds by their ends (hold.go)
//	{<account>}ranking                 hash: fills of each counter in the ranking, binary (ranking.go)
//	{<account>}ranked  ranked:<meter>  sorted sets: these counters by their highest fill, negative
//	{<account>}ranking-ends            sorted set: these counters by the first end of a window
//	{<account>}ranking-state           hash: time of CompleteRanking, and whether counters were left out
//
//	d:<digest>                         account and id of each key that has, had or was to have the digest, one a line
//
//	{<account>/<user>}c                hash: counters of the user (u) and of its keys (Seq), and their fields
//	{<account>/<user>}t:u  t:<seq>     past days of the user and of a key, binary
//	{<account>/<user>}y:u  y:<seq>     hashes: days of the meters of the user and of a key, see scripts/meter_days.lua
//	{<account>/<user>}e:u  e:<seq>     lists: hours of the last days of the user and of a key, see scripts/hours.lua
//	{<account>/<user>}h:u  h:<seq>     lists: history of the user and of a key, newest last
//	{<account>/<user>}i:<seq> j:<seq>  hashes: request ids of a key, current and previous day
//	{<account>/<user>}w:<random>       hold, by the random part of its id, binary
//	{<account>/<user>}x:u  x:<seq>     tombstones: the user or key was deleted, or the key moved away
//
//	{m<n>}mark                         hash that detects lost data on a master (mark.go)
//	{m<n>}mark:beats                   list: the last times at which a node checked the master
//	{m<n>}mark:probe                   time of the last test write of a node to the master (stats.go)
//
//	{registry}confirm  {<account>}confirm  written before a wait for replicas, for 1 ms (call.go)
//	!{…}…                              invalidations: written and deleted at once, for client tracking

// format is format 4 of this layout, stored in {registry}format. Each process reads the format at the start and once a second, and refuses every call when it is another one.
const format = "v4"

// keySlot is the prefix and hash tag of the keys of one slot.
type keySlot string

func (o *Options) registry() keySlot              { return keySlot(o.Prefix + "{registry}") }
func (o *Options) account(account string) keySlot { return keySlot(o.Prefix + "{" + account + "}") }

// usage returns the slot of a user's counters.
func (o *Options) usage(account string, user int64) keySlot {
	return keySlot(o.Prefix + "{" + account + "/" + strconv.FormatInt(user, 10) + "}")
}

// digest names the key that maps a digest to its API key.
func (o *Options) digest(d secrets.Digest) string {
	return o.Prefix + "d:" + base64.RawURLEncoding.EncodeToString(d[:])
}

func (n keySlot) key(name string) string { return string(n) + name }

// record names the record of a resource.
func (n keySlot) record(kind resource.Kind, id string) string {
	return string(n) + strings.ToLower(string(kind)) + ":" + id
}

func (n keySlot) rankingState() string { return n.key("ranking-state") }

func (n keySlot) user(id int64) string {
	return n.record(resource.User, strconv.FormatInt(id, 10))
}

// users and keys name the set of the resources that match a filter.
func (n keySlot) users(f core.UserFilter) string { return n.key(resource.UserSet(f)) }
func (n keySlot) keys(f core.KeyFilter) string   { return n.key(resource.KeySet(f)) }

// Keys in the slot of a user.
func (n keySlot) counters() string                      { return string(n) + "c" }
func (n keySlot) pastDays(field string) string          { return string(n) + "t:" + field }
func (n keySlot) meterDays(field string) string         { return string(n) + "y:" + field }
func (n keySlot) hours(field string) string             { return string(n) + "e:" + field }
func (n keySlot) history(field string) string           { return string(n) + "h:" + field }
func (n keySlot) requestIDs(field string) string        { return string(n) + "i:" + field }
func (n keySlot) earlierRequestIDs(field string) string { return string(n) + "j:" + field }
func (n keySlot) tombstone(field string) string         { return string(n) + "x:" + field }

// dayKeys returns the keys in Redis with the days of a user, and of one of its API keys unless field is userField. A script that changes several of
// them builds their names itself, and still gets all of them as KEYS. Without them in KEYS, Redis stops the script in the middle while the slot moves to
// another master.
func (n keySlot) dayKeys(field string) []string {
	keys := []string{n.pastDays(userField), n.meterDays(userField), n.hours(userField)}
	if field != userField {
		keys = append(keys, n.pastDays(field), n.meterDays(field), n.hours(field))
	}
	return keys
}

// dataKeys returns the keys of a user or API key besides the hash of counters.
func (n keySlot) dataKeys(field string) []string {
	if field == userField {
		return []string{n.history(field), n.pastDays(field), n.meterDays(field), n.hours(field)}
	}
	return []string{n.history(field), n.pastDays(field), n.meterDays(field), n.hours(field), n.requestIDs(field), n.earlierRequestIDs(field)}
}

// userField is the counter field of the user. The field of a key is its Seq.
const userField = "u"

// latenessField names the field with the lateness of a history: by how many seconds an entry may be
// earlier than an entry before it. The field is missing while the entries are in order. See shared.lua.
func latenessField(field string) string { return "l" + field }

// historySizeField names the field with the bytes and entries of a history at its last check. A history
// that never had 64 entries has none.
func historySizeField(field string) string { return "b" + field }

// bucketField names the field with the token bucket of a counter, and ownBucketField that of the own rate of a key. See consume.lua.
func bucketField(field string) string    { return "r" + field }
func ownBucketField(field string) string { return "k" + field }

// keylessField names the field of a user with the denials of requests without a key. See consume.lua.
func keylessField(field string) string { return "n" + field }

// metersField names the field with the meters of a counter other than requests. See shared.lua.
func metersField(field string) string { return "m" + field }

// hoursField names the field with the newest day of the hours of a counter. See hours.lua.
func hoursField(field string) string { return "e" + field }

// counterFields returns all fields of a user or key in the hash of counters.
func counterFields(field string) []string {
	fields := []string{latenessField(field), historySizeField(field), metersField(field), bucketField(field), ownBucketField(field),
		keylessField(field), openField(field), hoursField(field)}
	for _, f := range dayFields(field) {
		fields = append(fields, f.name)
	}
	return fields
}

// isCounter reports whether a field holds a counter, rather than a value that belongs to one.
func isCounter(field string) bool {
	return field == userField || '0' <= field[0] && field[0] <= '9'
}

func fieldOf(seq int64) string { return strconv.FormatInt(seq, 10) }
