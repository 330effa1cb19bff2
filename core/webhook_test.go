package core_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Only addresses of the public Internet are public, in whatever form they are written.
func TestIsPublic(t *testing.T) {
	for _, a := range []string{"93.184.215.14", "1.1.1.1", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1", "192.0.1.1", "198.17.255.255", "223.255.255.255",
		"2606:4700::1111", "2a00:1450:4001:810::200e", "64:ff9b::8.8.8.8", "2002:808:808::1", "::ffff:8.8.8.8"} {
		if !core.IsPublic(netip.MustParseAddr(a)) {
			t.Errorf("%s is not public", a)
		}
	}
	for _, a := range []string{"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255",
		"192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::10.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::",
		"2002:c0a8:1::1", "100::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1", "fc00::1", "fd12::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "::ffff:0:127.0.0.1", "::ffff:0:a9fe:a9fe", "4000::1", "2620:4f:8000::1", "168.63.129.16", "2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:a00:1"} {
		if core.IsPublic(netip.MustParseAddr(a)) {
			t.Errorf("%s is public", a)
		}
	}
	if core.IsPublic(netip.Addr{}) {
		t.Error("the zero address is public")
	}
}

// A webhook takes http and https URLs without user and fragment, and known types of events.
func TestWebhookMembers(t *testing.T) {
	apply := func(p core.WebhookPatch) (*core.Webhook, error) {
		w := &core.Webhook{}
		return w, core.WebhookMembers.Apply(&p, w)
	}
	for _, url := range []string{"https://example.com", "http://example.com:8080/a?b=c", "https://[2606:4700::1]/x", "https://example.com/%C3%A4", "HTTPS://EXAMPLE.COM/"} {
		if _, err := apply(core.WebhookPatch{URL: &url}); err != nil {
			t.Errorf("%s: got %v", url, err)
		}
	}
	for _, url := range []string{"", "example.com", "/hook", "//example.com/", "ftp://example.com/", "https://", "https:///x", "https://user@example.com/", "https://user:pass@example.com/",
		"https://example.com/#a", "https://example.com/#", "https://example.com:99999/", "https://exa mple.com/", "https://example.com/a b", "https://example.com/\n", "https://[::1/", "https:example.com",
		"https://example.com/" + strings.Repeat("a", 2048)} {
		if _, err := apply(core.WebhookPatch{URL: &url}); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("%.60q: got %v, want a validation error", url, err)
		}
	}
	for url, public := range map[string]bool{"https://example.com": true, "http://8.8.8.8": true, "http://LOCALHOST:80/": false, "http://localhost./": false, "http://a.localhost": false,
		"http://10.0.0.1": false, "http://[::ffff:10.0.0.1]/": false, "http://[fe80::1%25eth0]/": false} {
		if err := core.CheckPublicURL(url); (err == nil) != public {
			t.Errorf("%s: got %v", url, err)
		}
	}
	if w, err := apply(core.WebhookPatch{Events: core.Some([]string{core.EventForecast, core.EventThreshold, core.EventForecast})}); err != nil || len(w.Events) != 2 {
		t.Errorf("got %v, %v, want each type once", w.Events, err)
	}
	for _, types := range [][]string{{"limitkeeper.test"}, {""}, {"threshold"}, make([]string, 100)} {
		if _, err := apply(core.WebhookPatch{Events: core.Some(types)}); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("events %.40q: got %v, want a validation error", types, err)
		}
	}
}

// The attempts to deliver an event spread over 24 hours, and end.
func TestRetryDelay(t *testing.T) {
	var all time.Duration
	n := 0
	for ; ; n++ {
		d, retry := core.RetryDelay(n+1, 0.5)
		if !retry {
			break
		}
		low, _ := core.RetryDelay(n+1, 0)
		high, _ := core.RetryDelay(n+1, 1)
		if low >= d || high <= d || low < d*3/4 || high > d*5/4 {
			t.Errorf("attempt %d: got %v to %v around %v", n+1, low, high, d)
		}
		all += d
	}
	if all < 23*time.Hour || all > 25*time.Hour {
		t.Errorf("got %d attempts in %v, want 24 hours", n+1, all)
	}
}
