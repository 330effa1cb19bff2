package redisstore_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// The commands that docs/distributed.md lists for a Redis user.
var (
	ofScripts = []string{"dump", "exists", "hdel", "hexists", "hget", "hgetall", "hlen", "hmget", "hset", "hsetnx", "lindex", "llen",
		"lpop", "lrange", "lset", "ltrim", "pexpire", "pttl", "rename", "restore", "rpush", "unlink", "zadd", "zcard", "zcount", "zrange",
		"zrem", "time"}
	ofStore      = []string{"del", "eval", "evalsha", "get", "hscan", "info", "lrem", "set"}
	ofConnection = []string{"hello", "ping", "client|tracking", "cluster|slots", "cluster|shards"}
)

// aclRule returns the ACL rules of a user that may run commands on keys with a prefix.
func aclRule(prefix string, more ...string) []string {
	rules := []string{"ACL", "SETUSER", "limitkeeper", "reset", "on", ">secret", "~" + prefix + "*"}
	for _, c := range slices.Concat(ofScripts, ofStore, ofConnection, more) {
		rules = append(rules, "+"+c)
	}
	return rules
}

// A user with the permissions of docs/distributed.md can do everything, and needs each of them.
func TestLeastRights(t *testing.T) {
	server := redistest.Start(t)
	rules := aclRule("mine:")
	t.Log(strings.Join(rules, " "))
	server.Do(t, rules...)
	server.Do(t, "CONFIG", "RESETSTAT")
	s := openFaulty(t, redisstore.Options{Addresses: []string{server.Addr()}, Username: "limitkeeper", Password: "secret", Prefix: "mine:"})
	exerciseStore(t, s)
	exerciseExpiry(t, s, func(k *core.Key) { dayLater(t, server, "mine:", k) })
	if log := server.Do(t, "ACL", "LOG"); log != "" {
		t.Errorf("commands were refused: %s", log)
	}
	ran, allowed := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`cmdstat_([^\s|]+?)[|:]`).FindAllStringSubmatch(server.Do(t, "INFO", "commandstats"), -1) {
		ran[m[1]] = true // Redis 6.2 logs no subcommand
	}
	for _, c := range slices.Concat(ofScripts, ofStore, ofConnection) {
		name, _, _ := strings.Cut(c, "|")
		allowed[name] = true
	}
	for _, others := range []string{"config", "acl"} {
		delete(ran, others)
	}
	got, want := slices.Sorted(maps.Keys(ran)), slices.Sorted(maps.Keys(allowed))
	if !slices.Equal(got, want) {
		t.Errorf("commands that ran:\n%q, want\n%q", got, want)
	}
}

// On a Cluster with wait_replicas, the user also needs permission for WAIT. A database other than 0 is an
// error.
func TestLeastRightsOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for _, n := range c.Nodes() {
		n.Do(t, aclRule("mine:", "wait", "select")...)
	}
	o := redisstore.Options{Addresses: c.Addrs(), Username: "limitkeeper", Password: "secret", Prefix: "mine:",
		Wait: redisstore.Wait{Replicas: 1, Timeout: 5 * time.Second}}
	s := openFaulty(t, o)
	exerciseStore(t, s)
	exerciseExpiry(t, s, func(*core.Key) {})
	for _, n := range c.Nodes() {
		if log := n.Do(t, "ACL", "LOG"); log != "" {
			t.Errorf("commands were refused: %s", log)
		}
	}
	o.Database = 1
	if _, err := redisstore.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "database") {
		t.Errorf("Open with a database of a Cluster: %v, want an error about it", err)
	}
	o.Addresses = o.Addresses[:1]
	if _, err := redisstore.Open(t.Context(), o); err == nil || !regexp.MustCompile("cluster|DB index").MatchString(err.Error()) { // the wording of Valkey 9
		t.Errorf("Open with a database of a Cluster by one address: %v, want an error about it", err)
	}
}

// Behind Sentinel, the user also needs permission for ROLE.
func TestLeastRightsBehindSentinel(t *testing.T) {
	t.Parallel()
	n := redistest.StartSentinel(t)
	for _, s := range n.Servers() {
		s.Do(t, aclRule("mine:", "role")...)
	}
	exerciseStore(t, openFaulty(t, redisstore.Options{Addresses: n.Addrs(), Sentinel: n.Name(),
		Username: "limitkeeper", Password: "secret", Prefix: "mine:"}))
	for _, s := range n.Servers() {
		if log := s.Do(t, "ACL", "LOG"); log != "" {
			t.Errorf("commands were refused: %s", log)
		}
	}
}

// exerciseExpiry runs the commands that exerciseStore does not: imports, and the expiry of request ids and
// entries.
func exerciseExpiry(t *testing.T, s *redisstore.Store, dayLater func(k *core.Key)) {
	t.Helper()
	w := newWorld(t, s, 2)
	k := &w.keys[0]
	_, err := s.UpdateOwnerKey(t.Context(), w.account, "okey_1", func(k *core.OwnerKey) error { k.Name = "another"; return nil })
	if err != nil {
		t.Errorf("UpdateOwnerKey: %v", err)
	}
	entries := slices.Repeat([]core.Entry{consumption(k, "", false).Entry}, 100)
	for _, of := range []core.CounterID{{Account: w.account, KeyID: k.ID}, {Account: w.account, UserID: k.UserID}} {
		if err := s.SetHistory(t.Context(), of, entries, core.DefaultRetention); err != nil {
			t.Errorf("SetHistory: %v", err)
		}
		if err := s.AppendHistory(t.Context(), of, entries, core.DefaultRetention); err != nil {
			t.Errorf("AppendHistory: %v", err)
		}
	}
	if err := s.SetCounters(t.Context(), []core.CounterID{{Account: w.account, KeyID: k.ID}}, make([]core.Counter, 1)); err != nil {
		t.Errorf("SetCounters: %v", err)
	}
	days := []core.CounterDay{{Date: core.DateOf(time.Now()) - 1, Traffic: core.Traffic{Allowed: 1, Denied: 1}}}
	if err := s.SetDays(t.Context(), core.CounterID{Account: w.account, KeyID: k.ID}, days); err != nil {
		t.Errorf("SetDays: %v", err)
	}
	if list, err := s.Days(t.Context(), core.DaysFilter{Account: w.account, KeyID: k.ID}, days[0].Date, days[0].Date); err != nil || list[0].Traffic != days[0].Traffic {
		t.Errorf("Days: %+v, %v; want %+v", list, err, days)
	}
	if _, err := s.UpdateAccess(t.Context(), w.account, func(ac *core.Access) error { ac.Password = "hash"; return nil }); err != nil {
		t.Errorf("UpdateAccess: %v", err)
	}
	s.SetHistoryCap(1)
	for days := range 3 { // entries beyond the bound, expired entries and old request ids are removed. Hours end
		for i := range 65 {
			c := consumption(k, "", false)
			c.Entry.At = c.Entry.At.Truncate(24*time.Hour).AddDate(0, 0, 40*days).Add(time.Duration(i/10) * time.Hour)
			if i < 2 {
				c.RequestID = fmt.Sprint("id", i)
			}
			if _, err := s.Consume(t.Context(), c); err != nil {
				t.Errorf("Consume: %v", err)
			}
		}
		s.SetHistoryCap(1000)
		dayLater(k)
	}
	name := "mail@example.com"
	err = s.Update(t.Context(), w.account, func(tx core.Tx) error {
		u, err := tx.User(k.UserID)
		if err != nil {
			return err
		}
		u.Email, u.PlanID = &name, "plan_1"
		if err := tx.PutPlan(&core.Plan{AccountID: w.account, ID: "plan_1"}); err != nil {
			return err
		}
		return tx.PutUser(u)
	})
	if err != nil {
		t.Errorf("Update: %v", err)
	}
	if _, n, err := s.Users(t.Context(), w.account, core.UserFilter{Email: name}, core.Page{Number: 1, Size: 1}); n != 1 || err != nil {
		t.Errorf("Users: %d, %v; want 1", n, err)
	}
	if err := s.Update(t.Context(), w.account, func(tx core.Tx) error { return tx.DeleteKey(k.ID) }); err != nil {
		t.Errorf("DeleteKey: %v", err)
	}
}

// A missing permission is an error that names the command: at Open, or at its first use.
func TestMissingRights(t *testing.T) {
	server := redistest.Start(t)
	o := redisstore.Options{Addresses: []string{server.Addr()}, Username: "limitkeeper", Password: "secret", Prefix: "mine:"}
	for _, c := range []struct{ name, right string }{
		{"information", "+info"}, {"watching", "+client|tracking"}, {"keys", "~mine:*"}, {"reading", "+get"}, {"writing", "+set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server.Do(t, "FLUSHALL")
			server.Do(t, slices.DeleteFunc(aclRule("mine:"), func(rule string) bool { return rule == c.right })...)
			s, err := redisstore.Open(t.Context(), o)
			if err == nil {
				_ = s.Close()
				t.Fatal("Open: no error")
			}
			if text := err.Error(); !strings.Contains(strings.ToLower(text), "permission") || strings.Contains(text, "\n") {
				t.Errorf("Open: %q, want one line about permissions", text)
			}
			t.Log(err)
		})
	}
}

// On a Cluster, a user without permission for the topology cannot open a store. Otherwise the store would
// take one node for a single server.
func TestMissingRightsOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for _, n := range c.Nodes() {
		n.Do(t, slices.DeleteFunc(aclRule("mine:"), func(rule string) bool { return strings.HasPrefix(rule, "+cluster") })...)
	}
	for _, addresses := range [][]string{c.Addrs()[:1], c.Addrs()[1:2], c.Addrs()[2:3], c.Addrs()} {
		s, err := redisstore.Open(t.Context(), redisstore.Options{Addresses: addresses, Username: "limitkeeper", Password: "secret", Prefix: "mine:"})
		if err == nil {
			_ = s.Close()
			t.Fatal("Open: no error")
		}
		if text := err.Error(); !strings.Contains(text, "permission") || strings.Contains(text, "\n") {
			t.Errorf("Open: %q, want one line about permissions", text)
		}
		t.Log(err)
	}
}
