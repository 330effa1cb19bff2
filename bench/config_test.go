package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/limitkeeper/limitkeeper/caddymodule"
)

// Caddy accepts every generated Caddyfile: this test notices a renamed directive before
// the next measurement does.
func TestCaddyfilesAreValid(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("BENCH_OWNER_KEY", "lk_0123456789abcdefghijklmnopqrs")
	proxy := reverseProxy("127.0.0.1:19000")
	withStore := func(store storeConfig) string {
		return fmt.Sprintf(limitkeeperConfig, store.directive(t.TempDir()), "127.0.0.1:18080", "18443", "18081", proxy, "all")
	}
	for name, config := range map[string]string{
		"process":      withStore(onBadger("process")),
		"power":        withStore(onBadger("power")),
		"redis":        withStore(storeConfig{directive: func(string) string { return "store redis /nowhere/socket" }}),
		"respond":      fmt.Sprintf(siteConfig, "localhost:18443", staticAnswer(exampleAnswer)),
		"plain":        fmt.Sprintf(siteConfig, "http://127.0.0.1:18080", proxy),
		"same headers": fmt.Sprintf(siteConfig, "http://127.0.0.1:18080", staticHeaders(exampleAnswer.header)+"\n\t"+proxy),
		"forward_auth": fmt.Sprintf(siteConfig, "http://127.0.0.1:18080", forwardAuth("127.0.0.1:19001", "127.0.0.1:19000")),
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

// nginx accepts its configuration where nginx is installed. Everywhere, the configuration
// has a value for each parameter.
func TestNginxConfigIsValid(t *testing.T) {
	dir := t.TempDir()
	config := fmt.Sprintf(nginxConfig, dir, "127.0.0.1:18080", "127.0.0.1:19000", idleUpstreamConnections)
	if strings.Contains(config, "%!") {
		t.Errorf("a parameter is missing:\n%s", config)
	}
	path, err := (&harness{dir: dir}).file("nginx.conf", config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("nginx"); err != nil {
		t.Skip("nginx is not installed")
	}
	if out, err := exec.Command("nginx", "-t", "-p", dir, "-c", path, "-e", "stderr").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
