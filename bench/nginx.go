package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// nginxConfig limits requests by key and proxies. The rate is far above the load:
// everything is looked up and counted, and nothing refused. %[1]s is a directory,
// %[2]s the address, %[3]s the upstream.
const nginxConfig = `daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log stderr error;
events {
	worker_connections 4096;
}
http {
	access_log off;
	keepalive_requests 1000000000;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	limit_req_zone $http_x_api_key zone=keys:32m rate=1000000r/s;
	upstream behind {
		server %[3]s;
		keepalive %[4]d;
		keepalive_requests 1000000000;
	}
	server {
		listen %[2]s;
		location / {
			limit_req zone=keys burst=1000000 nodelay;
			limit_req_status 429;
			proxy_pass http://behind;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`

// startNginx starts nginx in front of an upstream, and returns its address.
func (l *lab) startNginx(ctx context.Context, upstream string) (*process, string, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(l.dir, "nginx")
	path, err := l.file("nginx/nginx.conf", fmt.Sprintf(nginxConfig, dir, addr, upstream, upstreamIdle))
	if err != nil {
		return nil, "", err
	}
	p, err := l.start("nginx", nil, "nginx", "-p", dir, "-c", path, "-e", "stderr")
	if err != nil {
		return nil, "", err
	}
	return p, addr, p.ready(ctx, accepts(addr))
}
