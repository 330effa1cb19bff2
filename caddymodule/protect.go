package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "protect",
		Usage:     "[--to <host:port>] [--from <:8443>] [--api <:8444>] [--data <dir>] [--demo] [--trust]",
		Short:     "Protects an upstream with usage limits, without a config",
		Long:      protectHelp,
		CobraFunc: protectCommand,
	})
}

const protectHelp = `
Runs a gateway at --from in front of the upstream at --to, and the REST API and
the dashboard at --api, both over HTTPS with certificates of an internal CA. Nothing is installed:
clients trust the CA by its file, which is printed. With --trust the CA is put
into the trust stores of this machine, which may ask for a password.

On the first start the account "default" is made and its owner's key printed. The
key opens the REST API; it is shown this once.

The certificates are for localhost, 127.0.0.1 and ::1, and for the hosts that
--from and --api name. An upstream with HTTPS is given as https://host:port.

With --demo no upstream is needed: it brings one that answers with the request
that it got, makes a plan of 3 requests a day with a user and a key, and prints
lines to try. The last one is refused. A demo listens on localhost only, unless
--from and --api say otherwise.

A demo keeps everything in a temporary directory, which it removes when it ends: by
Ctrl-C, by SIGTERM, or by the command stop. After kill -9, or a second Ctrl-C, the
directory stays among the temporary files of the system. With --data a demo keeps
everything in that directory, and finds it again at the next start.
`

func protectCommand(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringP("to", "t", "", "The upstream to protect, as host:port or https://host:port")
	flags.StringP("from", "f", ":8443", "The address of the gateway")
	flags.String("api", ":8444", "The address of the REST API")
	flags.String("data", "", "The directory that everything is kept in (default Caddy's data directory; of a demo, a temporary one)")
	flags.Bool("demo", false, "Bring an upstream and a plan, user and key to try")
	flags.Bool("trust", false, "Install the CA in the trust stores of this machine")
	flags.String("admin", "", "The address of the admin endpoint (default "+caddy.DefaultAdminListen+")")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := newProtection(caddycmd.Flags{FlagSet: cmd.Flags()})
		if err != nil {
			return err
		}
		return p.run(cmd.OutOrStdout())
	}
}

// protection is one run of the command protect.
type protection struct {
	to        *upstream // nil until the demo's own is up
	from, api endpointAddress
	admin     string
	data      string // "" for Caddy's data directory
	temporary bool   // data is removed at the end
	demo      bool
	trust     bool
}

// newProtection reads the flags.
func newProtection(flags caddycmd.Flags) (*protection, error) {
	p := &protection{demo: flags.Bool("demo"), trust: flags.Bool("trust"), admin: flags.String("admin")}
	if p.admin == "" {
		p.admin = caddy.DefaultAdminListen
	}
	var err error
	to := flags.String("to")
	switch {
	case to != "" && p.demo:
		return nil, errors.New("give either --to or --demo: the demo brings its own upstream")
	case to != "":
		if p.to, err = parseUpstream(to); err != nil {
			return nil, err
		}
	case !p.demo:
		return nil, errors.New("give the upstream to protect with --to host:port, or try it with --demo")
	}
	if p.from, err = p.endpoint(flags, "from"); err != nil {
		return nil, err
	}
	if p.api, err = p.endpoint(flags, "api"); err != nil {
		return nil, err
	}
	if p.from.port == p.api.port {
		return nil, fmt.Errorf("--from and --api need different ports, got %s twice", p.from.port)
	}
	if data := flags.String("data"); data != "" {
		p.data, err = filepath.Abs(data)
	}
	return p, err
}

// endpoint reads an address. A demo stays on this machine unless it is told otherwise.
func (p *protection) endpoint(flags caddycmd.Flags, name string) (endpointAddress, error) {
	a, err := parseEndpoint("--"+name, flags.String(name))
	if p.demo && !flags.Changed(name) {
		a.host = "localhost"
	}
	return a, err
}

// run serves until the process is told to stop.
func (p *protection) run(out io.Writer) error {
	if err := p.checkPorts(); err != nil {
		return err
	}
	if p.demo && p.data == "" {
		if err := p.makeTemporary(); err != nil {
			return err
		}
		defer p.removeTemporary() // for a start that fails: a server that runs ends by an exit
	}
	if err := p.checkData(); err != nil {
		return err
	}
	if p.to == nil {
		up, err := startEcho()
		if err != nil {
			return err
		}
		p.to = up
	}
	caddy.TrapSignals()
	if err := caddy.Run(p.config()); err != nil {
		return errors.New(textAfter(err, appName+" app module: start: "))
	}
	if err := p.setUp(out); err != nil {
		_ = caddy.Stop()
		return err
	}
	select {} // the signals end the process
}

// checkData makes sure that files can be made in the data directory. Caddy, which keeps
// the CA there, would say so behind a path of modules.
func (p *protection) checkData() error {
	root := p.storageRoot()
	err := os.MkdirAll(root, 0o700)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(root, "probe"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("cannot keep data in %s: %s; choose another directory with --data", root, lastPart(err.Error()))
	}
	return nil
}

// makeTemporary makes a directory to keep everything in until the process ends.
func (p *protection) makeTemporary() (err error) {
	if p.data, err = os.MkdirTemp("", "limitkeeper-demo-"); err != nil {
		return fmt.Errorf("making a temporary directory: %w; name a directory with --data", err)
	}
	p.temporary = true
	caddy.OnExit(func(context.Context) { p.removeTemporary() })
	return nil
}

func (p *protection) removeTemporary() {
	if err := os.RemoveAll(p.data); err != nil {
		caddy.Log().Warn("the directory of the demo is not removed", zap.Error(err))
	}
}

// checkPorts says which address is in use, if one is. Caddy itself would not notice
// on systems where two processes can listen on one port.
func (p *protection) checkPorts() error {
	for _, a := range []struct{ flag, address string }{
		{"--from", p.from.listen()}, {"--api", p.api.listen()}, {"--admin", p.admin},
	} {
		if a.flag == "--admin" && strings.Contains(a.address, "/") {
			continue // a unix socket
		}
		ln, err := net.Listen("tcp", a.address)
		if err != nil {
			return fmt.Errorf("cannot listen on %s: %s; choose another address with %s", a.address, lastPart(err.Error()), a.flag)
		}
		if err := ln.Close(); err != nil {
			return err
		}
	}
	return nil
}

// storageRoot returns the directory that Caddy keeps certificates in.
func (p *protection) storageRoot() string {
	if p.data != "" {
		return p.data
	}
	return caddy.AppDataDir()
}

// storeDir returns the directory of the store.
func (p *protection) storeDir() string { return filepath.Join(p.storageRoot(), "limitkeeper") }

// caFile returns the file of the CA's root certificate.
func (p *protection) caFile() string {
	return filepath.Join(p.storageRoot(), "pki", "authorities", "local", "root.crt")
}

// upstream is what is protected.
type upstream struct {
	dial string
	tls  bool
}

// parseUpstream reads host:port or scheme://host[:port].
func parseUpstream(s string) (*upstream, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		scheme, rest = "http", s
	}
	defaultPort, known := map[string]string{"http": "80", "https": "443"}[scheme]
	u, err := url.Parse("//" + rest)
	if !known || err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil || (!ok && u.Port() == "") {
		return nil, fmt.Errorf("--to: want host:port or https://host:port, got %q", s)
	}
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = defaultPort
	}
	return &upstream{dial: net.JoinHostPort(host, port), tls: scheme == "https"}, nil
}

// endpointAddress is where a server listens.
type endpointAddress struct{ host, port string }

// parseEndpoint reads [host]:port.
func parseEndpoint(flag, s string) (endpointAddress, error) {
	host, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil || port == "0" || strings.ContainsAny(host, "/ *{}") {
		return endpointAddress{}, fmt.Errorf("%s: want :port or host:port, got %q", flag, s)
	}
	return endpointAddress{host, port}, nil
}

// listen returns the address to listen on: that of an IP or of localhost, and every
// one for another host, whose name need not be that of an interface.
func (a endpointAddress) listen() string {
	if net.ParseIP(a.host) != nil || a.host == "localhost" {
		return net.JoinHostPort(a.host, a.port)
	}
	return ":" + a.port
}

// url returns the address as a client on this machine uses it.
func (a endpointAddress) url() string {
	host := a.host
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "https://" + strings.TrimSuffix(net.JoinHostPort(host, a.port), ":443")
}

// shellQuote makes s one word of a POSIX shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
