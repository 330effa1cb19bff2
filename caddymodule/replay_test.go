package caddymodule

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// A request in the first flight of HTTP/3 is not counted and not forwarded: a recorded copy of that flight could be sent again. The relay
// of the test drops the rest of the handshake: an attacker with a recording has no key of the connection, and sends nothing after the first flight.
func TestEarlyDataOverHTTP3(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "respond ok")
	port := s.Port
	config := strings.Replace(s.Config("store memory", s.tls()+"\nlimitkeeper\n"+up.proxy()), "http://localhost:"+port+", http://127.0.0.1:"+port, "https://127.0.0.1:"+port, 1)
	s.Must(s.Load(config))
	ten := s.Tenant("default", 10)
	secure := &tls.Config{InsecureSkipVerify: true, ServerName: "127.0.0.1", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	get := func(method, address string) int {
		t.Helper()
		client := &http3.Transport{TLSClientConfig: secure, Dial: func(ctx context.Context, _ string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
			return quic.DialAddrEarly(ctx, address, t, q)
		}}
		defer func() { _ = client.Close() }()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://127.0.0.1:"+port+"/x", nil)
		s.Must(err)
		r.Header.Set("X-API-Key", ten.Secret)
		answer, err := client.RoundTrip(r)
		s.Must(err)
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	if got := get(http.MethodGet, "127.0.0.1:"+port); got != http.StatusOK || s.used(ten) != 1 {
		t.Fatalf("a request over HTTP/3: got %d, and %d are used", got, s.used(ten))
	}
	relay := relayFirstFlight(t, "127.0.0.1:"+port)
	if got := get(http3.MethodGet0RTT, relay); got != http.StatusTooEarly {
		t.Errorf("a request in early data: got %d, want 425", got)
	}
	if s.used(ten) != 1 || up.count.Load() != 1 {
		t.Errorf("%d requests are counted and %d forwarded, want the first alone", s.used(ten), up.count.Load())
	}
}

// relayFirstFlight returns the address of a relay that forwards what a client of QUIC sends before it knows the server's answer.
func relayFirstFlight(t *testing.T, server string) string {
	t.Helper()
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	back, err := net.Dial("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close(); _ = back.Close() })
	client := make(chan net.Addr, 1)
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := front.ReadFrom(buf)
			if err != nil {
				return
			}
			select {
			case client <- from:
			default:
			}
			if inFirstFlight(buf[:n]) {
				_, _ = back.Write(buf[:n])
			}
		}
	}()
	go func() {
		to, buf := <-client, make([]byte, 2048)
		for {
			_ = back.SetReadDeadline(time.Now().Add(time.Minute))
			n, err := back.Read(buf)
			if err != nil {
				return
			}
			_, _ = front.WriteTo(buf[:n], to)
		}
	}()
	return front.LocalAddr().String()
}

// inFirstFlight reports whether a datagram has Initial and 0-RTT packets only (RFC 9000 sections 12.2 and 17.2).
func inFirstFlight(datagram []byte) bool {
	varint := func(b []byte) (v uint64, rest []byte) {
		n := 1 << (b[0] >> 6)
		v = uint64(b[0] & 0x3f)
		for _, c := range b[1:n] {
			v = v<<8 | uint64(c)
		}
		return v, b[n:]
	}
	for len(datagram) > 0 && datagram[0] != 0 { // zeros pad a datagram
		kind := datagram[0] >> 4 & 3
		if datagram[0]&0x80 == 0 || kind > 1 || binary.BigEndian.Uint32(datagram[1:]) == 0 {
			return false
		}
		rest := datagram[5:]
		for range 2 { // the connection IDs
			rest = rest[1+int(rest[0]):]
		}
		if kind == 0 {
			n, after := varint(rest)
			rest = after[n:]
		}
		n, after := varint(rest)
		datagram = after[n:]
	}
	return true
}
