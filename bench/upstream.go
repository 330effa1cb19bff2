package main

import (
	"bytes"
	"fmt"
	"net"
)

// upstreamCommand is the argument with which this program is an upstream instead.
const upstreamCommand = "upstream"

// upstreamBody is what the upstream answers to every request.
const upstreamBody = `{"items":[{"id":17,"name":"A thing","price":"12.00"},{"id":18,"name":"Another","price":"8.50"}]}` + "\n"

// upstreamAnswer is the whole of it.
var upstreamAnswer = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
	len(upstreamBody), upstreamBody)

// runUpstream serves on an address: requests without a body, one after the other on a
// connection. It does as little as it can, so that the proxy in front of it is what is
// measured.
func runUpstream(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want an address, got %q", args)
	}
	l, err := net.Listen("tcp", args[0])
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

// answerAll answers the requests of a connection until it is closed.
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
