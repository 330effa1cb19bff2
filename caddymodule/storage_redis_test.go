package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// A reload applies another password and another CA to the open store, also if only the contents of their
// files changed.
func TestRedisReloadsAccess(t *testing.T) {
	s, server, other := newServer(t), redistest.StartTLS(t), redistest.StartTLS(t)
	put := func(name, text string) { s.must(os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600)) }
	authority := func(of *redistest.Server) {
		pem, err := os.ReadFile(of.CAFile())
		s.must(err)
		put("ca.pem", string(pem))
	}
	allow := func(password string) {
		server.Do(t, "ACL", "SETUSER", "limitkeeper", "on", "resetpass", ">"+password, "~*", "&*", "+@all")
	}
	accounts := ""
	reload := func() {
		s.start("store redis "+server.TLSAddr()+" {\nusername limitkeeper\npassword {file.%dir/secret}\ntls {\nca %dir/ca.pem\n}\n}"+accounts, both("respond ok"))
	}
	allow("geheim-1")
	put("secret", "geheim-1\n")
	authority(server)
	reload()
	ten, service := s.tenant("default", 1000), s.service()
	answers := func(want int) {
		t.Helper()
		eventually(t, "another answer", func() bool { return s.validate(ten.owner, ten.secret).StatusCode == want })
	}
	answers(200)

	allow("geheim-2")
	server.Do(t, "CONFIG", "SET", "tls-cert-file", filepath.Join(other.Dir(), "cert.pem"), "tls-key-file", filepath.Join(other.Dir(), "key.pem"))
	put("secret", "geheim-3")
	authority(other)
	reload()
	s.waitLog("no new connection", 1)
	answers(200) // over existing connections
	server.CutConnections()
	answers(503)
	put("secret", "geheim-2")
	accounts = accountOption("later", core.NewOwnerSecret()) // an unavailable store must not reject the config that repairs it
	reload()
	answers(200)
	eventually(t, "the account of the config", func() bool { return s.exists("later") })
	if s.service() != service {
		t.Error("the store was opened anew, want the one that was open")
	}
	if log := s.logged(); strings.Contains(log, "geheim") || !strings.Contains(log, "WRONGPASS") {
		t.Error("the log shows a password, or not that it is wrong")
	}
}

// A reload that turns TLS on reopens the store. If that fails the reload is refused, and the open store stays
// open.
func TestRedisTurnsTLSOn(t *testing.T) {
	s, server := newServer(t), redistest.Start(t)
	config := "store redis " + server.Addr() + " {\n%s\n}"
	s.start(strings.ReplaceAll(config, "%s", ""), both("respond ok"))
	ten := s.tenant("default", 1000)
	err := s.load(s.rejected(strings.ReplaceAll(config, "%s", "tls"), both("respond ok")))
	if err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("got %v, want an error about TLS", err)
	}
	server.CutConnections()
	eventually(t, "the connections without TLS", func() bool { return s.validate(ten.owner, ten.secret).StatusCode == 200 })
	key := func(r RedisStore) string {
		s.must(r.Provision(caddy.Context{}))
		return r.PoolKey()
	}
	one := []string{"a:1"}
	if key(RedisStore{Addresses: one, TLS: &RedisTLS{}}) != key(RedisStore{Addresses: one, TLS: &RedisTLS{ServerName: "redis"}}) {
		t.Error("another name of the server is another store, want the same")
	}
}
