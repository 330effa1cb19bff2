package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
)

// upstreamCommand is the first argument that makes this program an upstream.
const upstreamCommand = "upstream"

// upstreamBody is the body of every answer of the upstream.
const upstreamBody = `{"items":[{"id":17,"name":"A thing","price":"12.00"},{"id":18,"name":"Another","price":"8.50"}]}` + "\n"

// upstreamAnswer is the whole answer.
var upstreamAnswer = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
	len(upstreamBody), upstreamBody)

// runUpstream answers requests without a body on an address. It does as little as possible,
// so that the proxy in front of it dominates the measurement.
func runUpstream(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go answerAll(c)
	}
}

// answerAll answers the requests of a connection until the client closes it.
func answerAll(c net.Conn) {
	defer c.Close()
	blank := []byte("\r\n\r\n")
	buf, have := make([]byte, 16<<10), 0
	for have < len(buf) {
		n, err := c.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		end := bytes.LastIndex(buf[:have], blank)
		if end < 0 {
			continue
		}
		answers := upstreamAnswer
		if n := bytes.Count(buf[:have], blank); n > 1 {
			answers = bytes.Repeat(upstreamAnswer, n)
		}
		if _, err := c.Write(answers); err != nil {
			return
		}
		have = copy(buf, buf[end+len(blank):have])
	}
}

// startUpstream starts this program as an upstream, and returns its address.
func (h *harness) startUpstream(ctx context.Context, name string) (string, *process, error) {
	addr, err := freeAddr()
	if err != nil {
		return "", nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	p, err := h.start(name, nil, self, upstreamCommand, addr)
	if err != nil {
		return "", nil, err
	}
	return addr, p, p.ready(ctx, accepts("tcp", addr))
}
