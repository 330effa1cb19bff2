package main

import (
	"net"
	"strings"
	"testing"
)

// serveUpstream serves the answer of the upstream, and returns its address.
func serveUpstream(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerAll(c)
		}
	}()
	return l.Addr().String()
}

// The probe returns the size of an answer, and refuses a wrong answer.
func TestProbe(t *testing.T) {
	addr := serveUpstream(t)
	good := &target{addr: addr, requests: []string{get(addr, "/", "key")}, want: upstreamBody, whole: true}
	if size, err := good.probe(); err != nil || size != int64(len(upstreamAnswer)) {
		t.Errorf("got %d, %v, want %d", size, err, len(upstreamAnswer))
	}
	begins := &target{addr: addr, requests: good.requests, want: `{"items":`}
	if _, err := begins.probe(); err != nil {
		t.Errorf("the right beginning of a body: got %v", err)
	}
	for name, bad := range map[string]*target{
		"another body": {addr: addr, requests: good.requests, want: "{}"},
		"more body":    {addr: addr, requests: good.requests, want: `{"items":`, whole: true},
		"two answers":  {addr: addr, requests: []string{good.requests[0] + good.requests[0]}, want: upstreamBody, whole: true},
	} {
		if _, err := bad.probe(); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// The upstream gives each request one answer, also when a packet has several requests or
// a part of one.
func TestUpstreamAnswersEachRequest(t *testing.T) {
	c, err := net.Dial("tcp", serveUpstream(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := get("host", "/", "key")
	for _, piece := range []string{request + request[:10], request[10:], request} {
		if _, err := c.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.Repeat(string(upstreamAnswer), 3)
	got := make([]byte, len(want))
	for n := 0; n < len(got); {
		m, err := c.Read(got[n:])
		if err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		n += m
	}
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A POST request tells the length of its body.
func TestPost(t *testing.T) {
	want := "POST /v HTTP/1.1\r\nHost: h\r\nUser-Agent: bench\r\nContent-Type: application/json\r\nA: b\r\nContent-Length: 4\r\n\r\n{\"\"}"
	if got := post("h", "/v", "A: b\r\n", `{""}`); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
