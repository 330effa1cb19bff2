package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// A reload applies another password and another CA to the open store, also if only the contents of their
// files changed.
func TestRedisReloadsAccess(t *testing.T) {
	s, server, other := newServer(t), redistest.StartTLS(t), redistest.StartTLS(t)
	put := func(name, text string) { s.Must(os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600)) }
	authority := func(of *redistest.Server) {
		pem, err := os.ReadFile(of.CAFile())
		s.Must(err)
		put("ca.pem", string(pem))
	}
	allow := func(password string) {
		server.Do(t, "ACL", "SETUSER", "limitkeeper", "on", "resetpass", ">"+password, "~*", "&*", "+@all")
	}
	accounts := ""
	reload := func() {
		s.Start("store redis "+server.TLSAddr()+" {\nusername limitkeeper\npassword {file.%dir/secret}\ntls {\nca %dir/ca.pem\n}\n}"+accounts, caddytest.Both("respond ok"))
	}
	allow("geheim-1")
	put("secret", "geheim-1\n")
	authority(server)
	reload()
	ten, service := s.Tenant("default", 1000), s.Service()
	answers := func(want int) {
		t.Helper()
		caddytest.Eventually(t, "another answer", func() bool { return s.Validate(ten.Owner, ten.Secret).StatusCode == want })
	}
	answers(200)

	allow("geheim-2")
	server.Do(t, "CONFIG", "SET", "tls-cert-file", other.CAFile(), "tls-key-file", other.CAFile())
	put("secret", "geheim-3")
	authority(other)
	reload()
	s.WaitLog("no new connection", 1)
	answers(200) // over existing connections
	server.CutConnections()
	answers(503)
	put("secret", "geheim-2")
	accounts = caddytest.AccountOption("later", secrets.NewOwnerSecret()) // an unavailable store must not reject the config that repairs it
	reload()
	answers(200)
	caddytest.Eventually(t, "the account of the config", func() bool { return s.Exists("later") })
	if s.Service() != service {
		t.Error("the store was opened anew, want the one that was open")
	}
	if log := s.Logged(); strings.Contains(log, "geheim") || !strings.Contains(log, "WRONGPASS") {
		t.Error("the log shows a password, or not that it is wrong")
	}
}

// A reload that turns TLS on reopens the store. If that fails the reload is refused, and the open store stays
// open.
func TestRedisTurnsTLSOn(t *testing.T) {
	s, server := newServer(t), redistest.Start(t)
	config := "store redis " + server.Addr() + " {\n%s\n}"
	s.Start(strings.ReplaceAll(config, "%s", ""), caddytest.Both("respond ok"))
	ten := s.Tenant("default", 1000)
	err := s.Load(s.rejected(strings.ReplaceAll(config, "%s", "tls"), caddytest.Both("respond ok")))
	if err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("got %v, want an error about TLS", err)
	}
	server.CutConnections()
	caddytest.Eventually(t, "the connections without TLS", func() bool { return s.Validate(ten.Owner, ten.Secret).StatusCode == 200 })
	key := func(r RedisStore) string {
		s.Must(r.Provision(caddy.Context{}))
		return r.PoolKey()
	}
	one := []string{"a:1"}
	if key(RedisStore{Addresses: one, TLS: &RedisTLS{}}) != key(RedisStore{Addresses: one, TLS: &RedisTLS{ServerName: "redis"}}) {
		t.Error("another name of the server is another store, want the same")
	}
}
