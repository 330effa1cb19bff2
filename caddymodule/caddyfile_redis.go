package caddymodule

import (
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]:
//
//	redis <address>... {
//		sentinel <master>
//		username <name>
//		password <password>
//		sentinel_username <name>
//		sentinel_password <password>
//		database <n>
//		prefix <text>
//		timeout <duration>
//		history <entries>
//		wait_replicas <n> <timeout>
//		tls [{
//			ca <file>
//			certificate <file> <key file>
//			server_name <name>
//		}]
//	}
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
		"wait_replicas":     r.unmarshalWait,
		"tls":               r.unmarshalTLS,
	}}.block(d, "store redis")
}

func (r *RedisStore) unmarshalWait(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) != 2 {
		return d.Errf("wait_replicas: want a number of replicas and a timeout, such as: wait_replicas 1 100ms")
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 {
		return d.Errf("wait_replicas: want a whole number of 1 or more, got %q", args[0])
	}
	r.WaitReplicas = &WaitReplicas{Replicas: n}
	if err := setDuration(d, "wait_replicas", args[1], "500ms", &r.WaitReplicas.Timeout); err != nil {
		return err
	}
	return noBlock(d)
}

func (r *RedisStore) unmarshalTLS(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	r.TLS = &RedisTLS{}
	return words{parse: map[string]parser{
		"ca": text(&r.TLS.CA),
		"certificate": func(d *caddyfile.Dispenser) error {
			if !d.AllArgs(&r.TLS.Certificate, &r.TLS.Key) {
				return d.Errf("certificate: want a certificate file and a key file")
			}
			return noBlock(d)
		},
		"server_name": text(&r.TLS.ServerName),
	}}.block(d, "the block tls")
}

// text returns the parser of a word with one argument.
func text(to *string) parser {
	return func(d *caddyfile.Dispenser) (err error) {
		*to, err = oneArg(d)
		return err
	}
}

// secret returns the parser of a word with one secret argument. Errors never quote the argument.
func secret(to *string) parser {
	return func(d *caddyfile.Dispenser) error {
		word := d.Val()
		args := d.RemainingArgs()
		if len(args) != 1 || args[0] == "" {
			return d.Errf("%s: want one argument, such as {env.REDIS_PASSWORD}, got %d", word, len(args))
		}
		*to = args[0]
		return noBlock(d)
	}
}

// whole returns the parser of a word with a whole number of smallest or more.
func whole(to *int, smallest int) parser {
	return func(d *caddyfile.Dispenser) error {
		word := d.Val()
		s, err := oneArg(d)
		if err != nil {
			return err
		}
		if *to, err = strconv.Atoi(s); err != nil || *to < smallest {
			return d.Errf("%s: want a whole number of %d or more, got %q", word, smallest, s)
		}
		return nil
	}
}

// duration returns the parser of a word with a positive duration. The error has an example of one.
func duration(to *caddy.Duration, example string) parser {
	return func(d *caddyfile.Dispenser) error {
		word := d.Val()
		s, err := oneArg(d)
		if err != nil {
			return err
		}
		return setDuration(d, word, s, example, to)
	}
}

func setDuration(d *caddyfile.Dispenser, word, s, example string, to *caddy.Duration) error {
	v, err := caddy.ParseDuration(strings.TrimSpace(s))
	if err != nil || v <= 0 {
		return d.Errf("%s: want a duration like %s, got %q", word, example, s)
	}
	*to = caddy.Duration(v)
	return nil
}
