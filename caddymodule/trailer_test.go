package caddymodule

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A key in a trailer does not reach the upstream; other trailers do.
func TestKeyInTrailer(t *testing.T) {
	got := make(chan http.Header, 2)
	s := newServer(t)
	up := newRecorder(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer.Clone()
	})
	s.Start("store memory", "limitkeeper\n"+up.proxy())
	ten := s.Tenant("default", 10)
	conn, err := net.Dial("tcp", "127.0.0.1:"+s.Port)
	s.Must(err)
	defer conn.Close()
	s.Must(conn.SetDeadline(time.Now().Add(20 * time.Second)))
	_, err = fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %[1]s\r\nTransfer-Encoding: chunked\r\nTrailer: X-API-Key, Referer, X-Checksum\r\n\r\n"+
		"5\r\nhello\r\n0\r\nX-API-Key: %[1]s\r\nReferer: https://a.example/?k=%[1]s\r\nX-Checksum: 42\r\n\r\n", ten.Secret)
	s.Must(err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	s.Must(err)
	if answer.StatusCode != 200 {
		t.Fatalf("got %d", answer.StatusCode)
	}
	trailer := <-got
	if strings.Contains(fmt.Sprint(trailer), ten.Secret) || trailer.Get("X-Checksum") != "42" {
		t.Errorf("the upstream got the trailers %v", trailer)
	}
}
