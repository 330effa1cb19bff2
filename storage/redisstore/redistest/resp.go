package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// call runs a command over a new connection to the unix socket. Unlike TCP, that leaves no port in
// TIME_WAIT. A reply is a string, an int64, nil, or an []any of these. An error reply is an error.
func (s *Server) call(within time.Duration, args ...string) (any, error) {
	conn, err := net.DialTimeout("unix", s.Socket(), within)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	if s.password != "" {
		if _, err := exchange(conn, r, "AUTH", s.password); err != nil {
			return nil, err
		}
	}
	return exchange(conn, r, args...)
}

// exchange sends a command and reads its reply.
func exchange(w io.Writer, r *bufio.Reader, args ...string) (any, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return nil, err
	}
	reply, err := readReply(r)
	if err != nil {
		return nil, err
	}
	if refused, ok := reply.(error); ok {
		return nil, refused
	}
	return reply, nil
}

// readReply reads a RESP2 reply. It returns an error reply as a value, since an array can contain one.
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if line = strings.TrimSuffix(line, "\r\n"); line == "" {
		return nil, errors.New("reply: empty line")
	}
	kind, rest := line[0], line[1:]
	if kind == '+' {
		return rest, nil
	}
	if kind == '-' {
		return errors.New(rest), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Errorf("reply: %q", line)
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		return readBulk(r, n)
	case kind == '*':
		return readArray(r, n)
	}
	return nil, fmt.Errorf("reply: %q", line)
}

func readBulk(r *bufio.Reader, size int64) (any, error) {
	text := make([]byte, size+int64(len("\r\n")))
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	return string(text[:size]), nil
}

func readArray(r *bufio.Reader, size int64) (any, error) {
	values := make([]any, size)
	for i := range values {
		var err error
		if values[i], err = readReply(r); err != nil {
			return nil, err
		}
	}
	return values, nil
}
