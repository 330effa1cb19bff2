package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// target is where requests go, and what they are.
type target struct {
	addr     string
	tls      bool
	requests []string // complete requests of HTTP/1.1, sent one after the other, again and again
	want     string   // what the body of every answer begins with
	whole    bool     // and ends with
}

// url returns the address for a load generator. With TLS it has the name that the
// certificate is for.
func (t *target) url(path string) string {
	if t.tls {
		return "https://localhost:" + port(t.addr) + path
	}
	return "http://" + t.addr + path
}

// dial connects.
func (t *target) dial() (net.Conn, error) {
	d := &net.Dialer{Timeout: 5 * time.Second}
	if !t.tls {
		return d.Dial("tcp", t.addr)
	}
	// Loopback, and a certificate that was made a moment ago.
	return tls.DialWithDialer(d, "tcp", t.addr, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
}

// answer is what a target answers to its first request.
type answer struct {
	header http.Header
	body   string
	size   int64 // of header and body
}

// ask makes the first request, and checks its answer.
func (t *target) ask() (a answer, err error) {
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
	counted := &countingReader{r: c}
	buffered := bufio.NewReader(counted)
	response, err := http.ReadResponse(buffered, nil)
	if err != nil {
		return a, err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	if response.StatusCode != http.StatusOK || !t.right(string(body)) {
		return a, fmt.Errorf("want 200 and %q, got %s and %q", t.want, response.Status, body)
	}
	if buffered.Buffered() > 0 {
		return a, errors.New("there is more than one answer to one request")
	}
	return answer{header: response.Header, body: string(body), size: counted.n}, nil
}

// probe makes the first request, checks its answer, and returns how many bytes that has.
func (t *target) probe() (size int64, err error) {
	a, err := t.ask()
	return a.size, err
}

// headerNames returns the names of a header's fields in order, without those that every
// server sets by itself.
func headerNames(h http.Header) []string {
	var names []string
	for name := range h {
		if !slices.Contains([]string{"Content-Length", "Date", "Server", "Alt-Svc", "Connection"}, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// right reports whether a body is what is wanted.
func (t *target) right(body string) bool {
	if t.whole {
		return body == t.want
	}
	return strings.HasPrefix(body, t.want)
}

// countingReader counts what is read.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// get returns a complete request for a path with a header field for the key.
func get(addr, path, key string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + addr + "\r\nUser-Agent: bench\r\nAccept: */*\r\nX-API-Key: " + key + "\r\n\r\n"
}

// post returns a complete request with a JSON body. Fields are complete lines of the
// header.
func post(host, path, fields, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		path, host, fields, len(body), body)
}
