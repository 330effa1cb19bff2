package main

import (
	"context"
	"fmt"
)

// haproxyConfig counts requests by key in a stick table and proxies. The bound is far
// above the load. %[1]s is the address, %[2]s the upstream.
const haproxyConfig = `global
	maxconn 4096
defaults
	mode http
	timeout connect 5s
	timeout client 1m
	timeout server 1m
	http-reuse always
frontend keys
	bind %[1]s
	stick-table type string len 64 size 100k expire 10m store http_req_rate(10s)
	http-request track-sc0 req.hdr(X-API-Key)
	http-request deny deny_status 429 if { sc_http_req_rate(0) gt 100000000 }
	default_backend behind
backend behind
	server upstream %[2]s
`

// startHAProxy starts HAProxy in front of an upstream, and returns its address.
func (l *lab) startHAProxy(ctx context.Context, upstream string) (*process, string, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	path, err := l.file("haproxy.cfg", fmt.Sprintf(haproxyConfig, addr, upstream))
	if err != nil {
		return nil, "", err
	}
	p, err := l.start("haproxy", nil, "haproxy", "-db", "-f", path)
	if err != nil {
		return nil, "", err
	}
	return p, addr, p.ready(ctx, accepts(addr))
}
