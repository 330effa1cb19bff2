package command

import (
	"cmp"
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

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

const protectHelp = `
Runs a gateway at --from in front of the upstream at --to, and the REST API and
the dashboard at --api, both over HTTPS with certificates of an internal CA. Clients trust
the CA by its file, whose path is printed. --trust installs the CA in the trust stores of
this machine, which may ask for a password.

The first start creates the account "default" and prints its owner's key. The key opens
the REST API. It is shown only once.

The certificates are valid for localhost, 127.0.0.1, ::1 and the hosts in --from and
--api. Write an upstream with HTTPS as https://host:port.

--demo needs no upstream: it starts one that answers with the request, creates a plan of
3 requests a day with a user and a key, and prints commands to try. The last one is
refused. A demo listens on localhost only, unless --from and --api say otherwise.

A demo keeps its data in a temporary directory. It removes the directory when it ends by
Ctrl-C, SIGTERM or the command stop, but not after kill -9 or a second Ctrl-C. With --data
a demo keeps its data in that directory for the next start.
`

func protectCommand(cmd *cobra.Command) {
	cmd.Example = `  limitkeeper protect --demo
  limitkeeper protect --to localhost:9000 --data ./data`
	flags := cmd.Flags()
	flags.StringP("to", "t", "", "The upstream to protect, as host:port or https://host:port")
	flags.StringP("from", "f", ":8443", "The address of the gateway")
	flags.String("api", ":8444", "The address of the REST API")
	flags.String("data", "", "The data directory (default Caddy's data directory; for a demo, a temporary one)")
	flags.Bool("demo", false, "Start a demo upstream, and create a plan, a user and a key to try")
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
	to        *upstream // nil until the demo upstream has started
	from, api endpointAddress
	admin     string
	data      string // the directory of the certificates and of the store; "" until the demo has made a temporary one
	temporary bool   // remove data at the end
	demo      bool
	trust     bool
}

// newProtection parses the flags.
func newProtection(flags caddycmd.Flags) (*protection, error) {
	p := &protection{demo: flags.Bool("demo"), trust: flags.Bool("trust"), admin: flags.String("admin")}
	if p.admin == "" {
		p.admin = caddy.DefaultAdminListen
	}
	var err error
	to := flags.String("to")
	switch {
	case to != "" && p.demo:
		return nil, errors.New("give either --to or --demo: the demo starts its own upstream")
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
	if data := flags.String("data"); data != "" || !p.demo {
		p.data, err = filepath.Abs(cmp.Or(data, caddy.AppDataDir()))
	}
	return p, err
}

// endpoint parses the address in a flag. A demo listens on localhost by default.
func (p *protection) endpoint(flags caddycmd.Flags, name string) (endpointAddress, error) {
	a, err := parseEndpoint("--"+name, flags.String(name))
	if p.demo && !flags.Changed(name) {
		a.host = "localhost"
	}
	return a, err
}

// run serves until a signal stops the process.
func (p *protection) run(out io.Writer) error {
	if err := p.checkPorts(); err != nil {
		return err
	}
	if p.data == "" {
		if err := p.makeTemporary(); err != nil {
			return err
		}
		defer p.removeTemporary() // for a failed start; a running server ends by os.Exit
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
	if err := caddy.Load(p.config(), true); err != nil {
		_, reason, _ := strings.Cut(err.Error(), appName+" app module: start: ") // the part before is the module path
		return errors.New(cmp.Or(reason, err.Error()))
	}
	if err := p.setUp(out); err != nil {
		_ = caddy.Stop()
		return err
	}
	select {} // signals end the process
}

// checkData returns an error if the data directory is that of a store, or unless files can be created in it. The error of Caddy
// would be hidden behind a module path.
func (p *protection) checkData() error {
	if isStore, err := badgerstore.Exists(p.data); err == nil && isStore {
		return fmt.Errorf("%s is itself a store, and protect uses the store in %s: name another directory with --data", p.data, p.storeDir())
	}
	err := os.MkdirAll(p.data, 0o700)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(p.data, "probe"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("cannot keep data in %s: %s; choose another directory with --data", p.data, lastPart(err.Error()))
	}
	return nil
}

// makeTemporary creates a data directory that is removed when the process ends.
func (p *protection) makeTemporary() (err error) {
	if p.data, err = os.MkdirTemp("", "limitkeeper-demo-"); err != nil {
		return fmt.Errorf("creating a temporary directory: %w; name a directory with --data", err)
	}
	p.temporary = true
	caddy.OnExit(func(context.Context) { p.removeTemporary() })
	return nil
}

func (p *protection) removeTemporary() {
	if err := os.RemoveAll(p.data); err != nil {
		caddy.Log().Warn("could not remove the data directory of the demo", zap.Error(err))
	}
}

// checkPorts returns an error if an address is in use. Caddy would not notice on systems where two
// processes can listen on one port.
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

// storeDir returns the directory of the store.
func (p *protection) storeDir() string { return filepath.Join(p.data, "limitkeeper") }

// caFile returns the file of the CA's root certificate.
func (p *protection) caFile() string {
	return filepath.Join(p.data, "pki", "authorities", "local", "root.crt")
}

// upstream is the address of the protected server.
type upstream struct {
	dial string
	tls  bool
}

// parseUpstream parses host:port or scheme://host[:port].
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
	if _, err := net.LookupPort("tcp", port); err != nil || port == "0" {
		return nil, fmt.Errorf("--to: want a port from 1 to 65535, got %q", s)
	}
	return &upstream{dial: net.JoinHostPort(host, port), tls: scheme == "https"}, nil
}

// endpointAddress is the listen address of a server.
type endpointAddress struct{ host, port string }

// parseEndpoint parses [host]:port.
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

// listen returns the address to listen on. An IP address and localhost are used as given. For
// another host it is every interface, because the name may not resolve to one.
func (a endpointAddress) listen() string {
	if net.ParseIP(a.host) != nil || a.host == "localhost" {
		return net.JoinHostPort(a.host, a.port)
	}
	return ":" + a.port
}

// url returns the URL for a client on this machine.
func (a endpointAddress) url() string {
	return originOf(localHost(a.host), a.port)
}

// shellQuote quotes s for a POSIX shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
