package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// call runs a command over a new connection to the unix socket. Unlike TCP, that leaves no port in
// TIME_WAIT. A reply is a string, an int64, nil, or an []any of these. An error reply is an error.
func (s *Server) call(within time.Duration, args ...string) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{s.Socket()},
		DialCtxFn: func(ctx context.Context, socket string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
		Dialer:             net.Dialer{Timeout: within},
		ConnWriteTimeout:   within,
		Password:           s.password,
		ClientSetInfo:      rueidis.DisableClientSetInfo,
		ForceSingleClient:  true, // also of a node of a cluster
		AlwaysRESP2:        true, // arrays instead of maps
		DisableCache:       true,
		DisableRetry:       true,
		PipelineMultiplex:  -1,
		RingScaleEachConn:  1, // the connection has one command
		ReadBufferEachConn: 4096, WriteBufferEachConn: 4096,
	})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	reply, err := client.Do(ctx, client.B().Arbitrary(args...).Build()).ToAny()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	return reply, err
}

// Do runs a command and returns its reply as redis-cli prints it into a pipe: numbers in decimal, nothing
// for nil, one line for each element of an array. It fails the test on an error reply, or after 20
// seconds.
func (s *Server) Do(tb testing.TB, args ...string) string {
	tb.Helper()
	reply, err := s.Try(args...)
	if err != nil {
		tb.Fatalf("%s: %s: %v\n%s", s.Addr(), strings.Join(args, " "), err, lastLines(s))
	}
	return reply
}

// Try is Do, but returns an error: an error reply, a failed connection, or no reply within 20 seconds.
func (s *Server) Try(args ...string) (string, error) {
	reply, err := s.call(limit, args...)
	return text(reply), err
}

// text formats a reply.
func text(reply any) string {
	switch v := reply.(type) {
	case nil:
		return ""
	case []any:
		lines := make([]string, len(v))
		for i, element := range v {
			lines[i] = text(element)
		}
		return strings.Join(lines, "\n")
	default:
		return fmt.Sprint(v)
	}
}

// CutConnections makes the server close all client connections, except connections of replicas and of the
// cluster bus. It returns their number. Clients can reconnect at once. It fails the test if the server
// does not answer.
func (s *Server) CutConnections() (cut int) {
	s.tb.Helper()
	for _, kind := range []string{"normal", "pubsub"} {
		n, _ := strconv.Atoi(s.Do(s.tb, "CLIENT", "KILL", "TYPE", kind))
		cut += n
	}
	return cut
}

// AwaitReplicas waits until n replicas are online and have acknowledged data. A replica that still loads
// data is online, too. It fails the test after 20 seconds.
func (s *Server) AwaitReplicas(n int) {
	s.tb.Helper()
	await(s.tb, fmt.Sprintf("%d replicas of %s", n, s.Addr()), []*Server{s}, func() error {
		if _, err := s.call(brief, "PUBLISH", "awaiting", "replicas"); err != nil { // replicated, so that replicas acknowledge it
			return err
		}
		reply, err := s.call(brief, "INFO", "replication")
		if online := len(acknowledged.FindAllString(text(reply), -1)); err != nil || online != n {
			return errors.Join(err, fmt.Errorf("%d replicas", online))
		}
		return nil
	})
}

// acknowledged matches each replica in INFO that is online and has acknowledged data.
var acknowledged = regexp.MustCompile(`state=online,offset=[1-9]`)

// info runs a command that replies with lines of name:value.
func (s *Server) info(args ...string) (map[string]string, error) {
	reply, err := s.call(brief, args...)
	info := map[string]string{}
	for line := range strings.Lines(text(reply)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info, err
}

// has returns an error unless a command replies with a line of the name and the value.
func (s *Server) has(name, value string, args ...string) error {
	info, err := s.info(args...)
	if err == nil && info[name] != value {
		err = fmt.Errorf("%s: %s is %q, want %s", s.Addr(), name, info[name], value)
	}
	return err
}

// isLinked returns an error if the server is a replica without link to its master.
func (s *Server) isLinked() error {
	info, err := s.info("INFO", "replication")
	if link := info["master_link_status"]; err == nil && link != "" && link != "up" {
		err = fmt.Errorf("the link of %s to its master is %s", s.Addr(), link)
	}
	return err
}

// CPU returns the CPU time, user and system, of the process and its threads. It fails the test if the server does not answer.
func (s *Server) CPU() time.Duration {
	s.tb.Helper()
	info, err := s.info("INFO", "cpu")
	user, errUser := time.ParseDuration(info["used_cpu_user"] + "s")
	system, errSystem := time.ParseDuration(info["used_cpu_sys"] + "s")
	if err := errors.Join(err, errUser, errSystem); err != nil {
		s.tb.Fatalf("CPU time of %s: %v", s.Addr(), err)
	}
	return user + system
}
