package caddymodule

import (
	"cmp"
	"errors"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]. docs/caddyfile.md describes the words.
func (r *RedisStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the module's name
	if r.Addresses = d.RemainingArgs(); len(r.Addresses) == 0 {
		return d.Errf("store redis: want one address or more, such as: store redis 127.0.0.1:6379")
	}
	for i, a := range r.Addresses {
		if _, ok := redisAddress(a); !ok && !strings.Contains(a, "{") { // placeholders are checked after they are replaced
			return d.WrapErr(wrongRedisAddress(i))
		}
	}
	return words{parse: map[string]parser{
		"sentinel":          text(&r.Sentinel),
		"username":          text(&r.Username),
		"password":          secret(&r.Password),
		"sentinel_username": text(&r.SentinelUsername),
		"sentinel_password": secret(&r.SentinelPassword),
		"database":          whole(&r.Database, 0),
		"prefix":            text(&r.Prefix),
		"timeout":           duration(&r.Timeout, "500ms"),
		"history":           whole(&r.History, 1),
		"wait_replicas":     args(r.unmarshalWait),
		"tls":               r.unmarshalTLS,
	}}.block(d, "store redis")
}

func (r *RedisStore) unmarshalWait(word string, args []string) error {
	if len(args) != 2 {
		return errors.New("wait_replicas: want a number of replicas and a timeout, such as: wait_replicas 1 100ms")
	}
	r.WaitReplicas = &WaitReplicas{}
	return cmp.Or(setWhole(&r.WaitReplicas.Replicas, 1, word, args[0]), setDuration(&r.WaitReplicas.Timeout, "500ms", word, args[1]))
}

func (r *RedisStore) unmarshalTLS(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	r.TLS = &RedisTLS{}
	return words{parse: map[string]parser{
		"ca": text(&r.TLS.CA),
		"certificate": args(func(_ string, args []string) error {
			if len(args) != 2 {
				return errors.New("certificate: want a certificate file and a key file")
			}
			r.TLS.Certificate, r.TLS.Key = args[0], args[1]
			return nil
		}),
		"server_name": text(&r.TLS.ServerName),
	}}.block(d, "the block tls")
}
