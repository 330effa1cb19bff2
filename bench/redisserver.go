package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// redisServer is a server of Redis, with a directory of its own.
type redisServer struct {
	process *process
	addr    string // over TCP
	socket  string // a unix socket, in the directory of the lab
	path    string // the same from everywhere
}

// startRedis starts a server with a name, and options beyond those that keep nothing on
// disk.
func (l *lab) startRedis(ctx context.Context, name string, options ...string) (*redisServer, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	const socket = "socket" // in that directory
	s := &redisServer{addr: addr, socket: filepath.Join(name, socket)}
	s.path = filepath.Join(l.dir, s.socket)
	if err := os.MkdirAll(filepath.Join(l.dir, name), 0o755); err != nil {
		return nil, err
	}
	argv := append([]string{"redis-server", "--bind", "127.0.0.1", "--port", port(addr), "--dir", name, "--unixsocket", socket,
		"--save", "", "--appendonly", "no", "--daemonize", "no"}, options...)
	if s.process, err = l.start(name, nil, argv...); err != nil {
		return nil, err
	}
	return s, s.process.ready(ctx, accepts(addr))
}

// dial connects to the server, for what is beside the load.
func (s *redisServer) dial() (redisClient, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.addr}, DisableCache: true, ClientName: "bench"})
	return redisClient{c}, err
}

// redisClient sends commands.
type redisClient struct{ rueidis.Client }

func (c redisClient) do(ctx context.Context, command ...string) rueidis.RedisResult {
	return c.Do(ctx, c.B().Arbitrary(command...).Build())
}

// calls returns how often the server has run any of some commands, for clients and for
// scripts.
func (c redisClient) calls(ctx context.Context, commands ...string) (sum int64, err error) {
	text, err := c.do(ctx, "INFO", "commandstats").ToString()
	if err != nil {
		return 0, err
	}
	for _, command := range commands {
		n, err := parseCalls(text, command)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// parseCalls reads from the statistics of commands how often one was run.
func parseCalls(text, command string) (int64, error) {
	_, rest, found := strings.Cut(text, "cmdstat_"+command+":calls=")
	if !found {
		return 0, nil
	}
	digits, _, _ := strings.Cut(rest, ",")
	return strconv.ParseInt(digits, 10, 64)
}

// connectionsOf returns how many connections of the clients with a name have run a
// command last.
func (c redisClient) connectionsOf(ctx context.Context, name, command string) (n int, err error) {
	text, err := c.do(ctx, "CLIENT", "LIST").ToString()
	if err != nil {
		return 0, err
	}
	return parseClients(text, name, command), nil
}

// parseClients counts connections in a list of them.
func parseClients(text, name, command string) (n int) {
	for line := range strings.Lines(text) {
		fields := " " + strings.TrimSpace(line) + " "
		if strings.Contains(fields, " name="+name+" ") && strings.Contains(fields, " cmd="+command+" ") {
			n++
		}
	}
	return n
}

// onRedis is a store on a server at an address of it.
func onRedis(called string, s *redisServer, address string) kept {
	return kept{name: "limitkeeper-" + s.process.name, called: called, servers: []*process{s.process},
		directive: func(string) string { return fmt.Sprintf("store redis %s", address) }}
}
