package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/limitkeeper/limitkeeper/caddymodule"
)

// ourConfig returns a Caddyfile of ours with a store.
func ourConfig(dir string, k kept) string {
	return fmt.Sprintf(oursConfig, "off", k.directive(dir), "127.0.0.1:18080", "18443", "18081", reverseProxy("127.0.0.1:19000"))
}

// Caddy takes every Caddyfile that is generated: a directive that was renamed is
// noticed here and not in the next measurement.
func TestCaddyfilesAreValid(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("BENCH_OWNER_KEY", "lk_0123456789abcdefghijklmnopqrs")
	for name, config := range map[string]string{
		"process":      ourConfig(t.TempDir(), onBadger("process")),
		"power":        ourConfig(t.TempDir(), onBadger("power")),
		"redis":        ourConfig(t.TempDir(), onRedis("on Redis", &redisServer{process: &process{name: "redis"}}, "127.0.0.1:1")),
		"socket":       ourConfig(t.TempDir(), onRedis("on Redis", &redisServer{process: &process{name: "redis"}}, "/nowhere/socket")),
		"respond":      fmt.Sprintf(plainConfig, "localhost:18443", respond(anAnswer)),
		"plain":        fmt.Sprintf(plainConfig, "http://127.0.0.1:18080", reverseProxy("127.0.0.1:19000")),
		"forward_auth": fmt.Sprintf(plainConfig, "http://127.0.0.1:18080", forwardAuth("127.0.0.1:19001", "127.0.0.1:19000")),
	} {
		text, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, config)
			continue
		}
		for _, w := range warnings {
			if w.Directive != "" {
				t.Errorf("%s: %v", name, w)
			}
		}
		var c caddy.Config
		if err := caddy.StrictUnmarshalJSON(text, &c); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if err := caddy.Validate(&c); err != nil {
			t.Errorf("%s: %v\n%s", name, err, config)
		}
	}
}

// The other programs take their configurations where they are installed; everywhere
// nothing is left out of them.
func TestOtherConfigsAreValid(t *testing.T) {
	dir := t.TempDir()
	l := &lab{dir: dir}
	for _, c := range []struct {
		file, text string
		check      func(path string) []string
	}{
		{"nginx.conf", fmt.Sprintf(nginxConfig, dir, "127.0.0.1:18080", "127.0.0.1:19000", upstreamIdle),
			func(path string) []string { return []string{"nginx", "-t", "-p", dir, "-c", path, "-e", "stderr"} }},
		{"haproxy.cfg", fmt.Sprintf(haproxyConfig, "127.0.0.1:18080", "127.0.0.1:19000"),
			func(path string) []string { return []string{"haproxy", "-c", "-f", path} }},
	} {
		if strings.Contains(c.text, "%!") {
			t.Errorf("%s: something is left out:\n%s", c.file, c.text)
		}
		path, err := l.file(c.file, c.text)
		if err != nil {
			t.Fatal(err)
		}
		argv := c.check(path)
		if _, err := exec.LookPath(argv[0]); err != nil {
			t.Logf("%s is not installed: only the text was looked at", argv[0])
			continue
		}
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(path), err, out)
		}
	}
}
