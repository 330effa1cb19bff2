package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/caddymodule"
)

func signInCommand() *cobra.Command {
	cmd := subcommand("sign-in NAME", "Prints a link that signs in to the dashboard, once, within 10 minutes", "limitkeeper account sign-in acme --url https://api.example.com", runSignIn)
	cmd.Flags().String("url", "", "Address of the dashboard, such as https://api.example.com, if the config does not have it")
	return cmd
}

func runSignIn(c *adminClient, args []string) error {
	origin, err := c.dashboardOrigin()
	if err != nil {
		return err
	}
	var v signInView
	if err := c.call(http.MethodPost, "sign-in?"+url.Values{"account": {args[0]}, "origin": {origin}}.Encode(), nil, &v); err != nil {
		return fmt.Errorf("creating a link for account %q: %w", args[0], err)
	}
	return c.printf("%s\nIt signs in to %s, once, until %s.\n", v.Link, printable(v.Account), shownTime(&v.ExpiresAt))
}

// dashboardOrigin returns the origin of the dashboard from --url, or else from the running
// config.
func (c *adminClient) dashboardOrigin() (string, error) {
	if given := c.flags.String("url"); given != "" {
		u, err := url.Parse(given)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			return "", fmt.Errorf("--url: want an address like https://api.example.com, got %q", given)
		}
		return "https://" + u.Host, nil
	}
	var app caddyhttp.App
	if err := c.fetch(http.MethodGet, "/config/apps/http", nil, &app); err != nil {
		return "", err
	}
	origins := dashboardOrigins(&app)
	if len(origins) == 0 {
		return "", errors.New("no site of the running config serves the dashboard (limitkeeper_api) over HTTPS: name its address, as in --url https://api.example.com")
	}
	return origins[0], nil
}

// dashboardOrigins returns the origins of the dashboard in a config of the HTTP app, those with a
// host name first.
func dashboardOrigins(app *caddyhttp.App) []string {
	if app.HTTPPort == 0 {
		app.HTTPPort = caddyhttp.DefaultHTTPPort
	}
	var named, local []string
	for _, server := range app.Servers {
		hosts := dashboardHosts(server.Routes, []string{""})
		auto := cmp.Or(server.AutoHTTPS, new(caddyhttp.AutoHTTPSConfig))
		plain := func(host string) bool { // Caddy enables HTTPS automatically for host names only
			return len(server.TLSConnPolicies) == 0 && (host == "" || auto.Disabled || slices.Contains(auto.Skip, host))
		}
		for _, listen := range server.Listen {
			a, err := caddy.ParseNetworkAddress(listen)
			if err != nil || a.IsUnixNetwork() || int(a.StartPort) == app.HTTPPort {
				continue
			}
			port := fmt.Sprint(a.StartPort)
			for _, host := range hosts {
				switch {
				case plain(host), strings.ContainsAny(host, "*{"): // a pattern or a placeholder is no address
				case host == "":
					local = append(local, originOf(localHost(a.Host), port))
				default:
					named = append(named, originOf(host, port))
				}
			}
		}
	}
	slices.Sort(named)
	slices.Sort(local)
	return append(named, local...)
}

// dashboardHosts returns the hosts for which routes serve the dashboard, "" for any host. around are the hosts of the
// enclosing route.
func dashboardHosts(routes caddyhttp.RouteList, around []string) (hosts []string) {
	for _, rt := range routes {
		names := around
		for _, m := range rt.MatcherSetsRaw {
			var matched []string
			if json.Unmarshal(m["host"], &matched) == nil {
				names = matched
			}
		}
		for _, raw := range rt.HandlersRaw {
			var h struct {
				Handler   string              `json:"handler"`
				Dashboard *bool               `json:"dashboard"`
				Routes    caddyhttp.RouteList `json:"routes"`
			}
			_ = json.Unmarshal(raw, &h) // another handler may have a member routes of another type
			if h.Handler == "limitkeeper_api" && (h.Dashboard == nil || *h.Dashboard) {
				hosts = append(hosts, names...)
			}
			hosts = append(hosts, dashboardHosts(h.Routes, names)...)
		}
	}
	return hosts
}

// localHost returns the host name of a listen address for a client on this machine.
func localHost(host string) string {
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "localhost"
	}
	return host
}

func originOf(host, port string) string {
	return "https://" + strings.TrimSuffix(net.JoinHostPort(host, port), ":443")
}

// signInView is a sign-in link as the admin API and the commands show it.
type signInView struct {
	Account   string    `json:"account"`
	Link      string    `json:"link"`
	ExpiresAt time.Time `json:"expires_at"`
}

func makeSignInLink(running *caddymodule.OpenStore, r *http.Request) (any, error) {
	q := r.URL.Query()
	a, secret, expires, err := running.Service.SignIn.NewLink(r.Context(), q.Get("account"))
	if err != nil {
		return nil, err
	}
	return signInView{Account: a.Name, Link: q.Get("origin") + signInPath(secret), ExpiresAt: expires}, nil
}

// signInPath returns the path and query of a sign-in link.
func signInPath(secret string) string {
	return dashboard.Base + "sign-in?" + url.Values{"link": {secret}}.Encode()
}
