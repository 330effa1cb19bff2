package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// target is an address, the requests to send there, and the expected answer.
type target struct {
	addr     string
	tls      bool
	requests []string // complete HTTP/1.1 requests, sent in turn
	want     string   // how the body of every answer begins
	whole    bool     // want is the whole body
}

// url returns the address for a load generator. With TLS the URL has the name that the
// certificate is for.
func (t *target) url() string {
	if t.tls {
		return "https://localhost:" + port(t.addr) + "/"
	}
	return "http://" + t.addr + "/"
}

func (t *target) dial() (net.Conn, error) {
	d := &net.Dialer{Timeout: 5 * time.Second}
	if !t.tls {
		return d.Dial("tcp", t.addr)
	}
	// The certificate is new, from a CA that the system does not know.
	return tls.DialWithDialer(d, "tcp", t.addr, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
}

// answer is the answer of a target to its first request.
type answer struct {
	header http.Header
	body   string
	size   int64 // of header and body in bytes
}

// fetch sends the first request, and checks the answer.
func (t *target) fetch() (a answer, err error) {
	c, err := t.dial()
	if err != nil {
		return a, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return a, err
	}
	if _, err := io.WriteString(c, t.requests[0]); err != nil {
		return a, err
	}
	var wire bytes.Buffer
	buffered := bufio.NewReader(io.TeeReader(c, &wire))
	response, err := http.ReadResponse(buffered, nil)
	if err != nil {
		return a, err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), t.want) || t.whole && len(body) != len(t.want) {
		return a, fmt.Errorf("want 200 and %q, got %s and %q", t.want, response.Status, body)
	}
	if buffered.Buffered() > 0 {
		return a, errors.New("one request got more than one answer")
	}
	return answer{header: response.Header, body: string(body), size: int64(wire.Len())}, nil
}

// probe sends the first request, checks the answer, and returns its size in bytes.
func (t *target) probe() (size int64, err error) {
	a, err := t.fetch()
	return a.size, err
}

// get returns a GET request with an API key.
func get(addr, path, key string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + addr + "\r\nUser-Agent: bench\r\nAccept: */*\r\nX-API-Key: " + key + "\r\n\r\n"
}

// post returns a POST request with a JSON body. Fields are complete header lines.
func post(host, path, fields, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		path, host, fields, len(body), body)
}
