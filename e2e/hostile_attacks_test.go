package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attack is one kind of hostile load: rate strikes a second, at most so many at a time.
// The answers are the statuses that the docs name, opened for a connection that waits for
// no answer, and 0 for a connection that the server may give up.
type attack struct {
	name    string
	rate    int
	most    int
	strike  func(*target, context.Context) (status int, err error)
	answers []int
}

// opened is in place of a status.
const opened = 1

// attacks are all that TestHostile tries. Headers of 19,000 bytes are just below Caddy's
// bound, max_header_size.
var attacks = []attack{
	{"unknown_keys", 500, 64, unknownKey, []int{401}},
	{"cookies", 100, 16, sessionCookies, []int{401}},
	{"headers", 100, 16, manyHeaders, []int{401}},
	{"headers_over", 50, 16, headersOver, []int{431, 0}},
	{"query_pairs", 100, 16, queryPairs, []int{401}},
	{"denials", 500, 64, longDenial, []int{429}},
	{"sign_ins", 50, 64, signInStorm, []int{403, 429, 503}},
	{"bodies", 20, 16, longBody, []int{400, 0}},
	{"deep_json", 50, 16, deepJSON, []int{400}},
	{"handshakes", 50, 16, handshake, []int{opened}},
	{"plain_http", 100, 16, plainHTTP, []int{400}},
	{"rapid_resets", 10, 16, rapidResets, []int{opened}},
	{"slow_headers", 10, 200, slowHeaders, []int{opened}},
	{"slow_bodies", 10, 150, slowBody, []int{opened}},
	{"slow_readers", 10, 150, slowReader, []int{opened}},
	{"adjustments", 50, 16, adjustment, []int{200, 429}},
	{"slow_lists", 10, 150, slowList, []int{opened}},
	{"request_ids", 100, 16, requestID, []int{200}},
	{"unfinished_forms", 50, 400, unfinishedForm, []int{opened, 0}},
	{"histories", 20, 16, historyList, []int{200, 429}},
	{"filtered_keys", 20, 16, filteredKeys, []int{200, 429}},
}

func unknownKey(g *target, ctx context.Context) (int, error) {
	return g.strike(ctx, "GET", "https://"+g.Gateway+"/v1/items", nil, map[string]string{"X-API-Key": "lk_user_" + rand.Text()})
}

func sessionCookies(g *target, ctx context.Context) (int, error) {
	return g.strike(ctx, "GET", "https://"+g.Gateway+"/v1/items", nil, map[string]string{"Cookie": strings.Repeat("__Secure-limitkeeper=x; ", 19_000/24)})
}

func manyHeaders(g *target, ctx context.Context) (int, error) {
	header := map[string]string{}
	for i := range 19_000 / 22 {
		header[fmt.Sprintf("X-%05d", i)] = "lk_user_%6c"
	}
	return g.strike(ctx, "GET", "https://"+g.Gateway+"/v1/items", nil, header)
}

func headersOver(g *target, ctx context.Context) (int, error) {
	return g.strike(ctx, "GET", "https://"+g.Gateway+"/v1/items", nil, map[string]string{"X-Large": strings.Repeat("x", 40_000)})
}

func queryPairs(g *target, ctx context.Context) (int, error) {
	return g.strike(ctx, "GET", "https://"+g.Gateway+"/v1/items?"+strings.Repeat("a&", 19_000/2), nil, nil)
}

func longDenial(g *target, ctx context.Context) (int, error) {
	header := map[string]string{"X-API-Key": g.Denied[g.next.Add(1)%rogueKeys]}
	return g.strike(ctx, "GET", "https://"+g.Gateway+"/rogue/"+strings.Repeat("x", 2030), nil, header)
}

// signInStorm tries a name and password from an address of a network, or from any.
func signInStorm(g *target, ctx context.Context) (int, error) {
	address := netip.AddrFrom4([4]byte{203, 0, 113, byte(mathrand.IntN(256))})
	if mathrand.IntN(2) == 0 {
		address = netip.AddrFrom4([4]byte{byte(11 + mathrand.IntN(80)), byte(mathrand.IntN(256)), byte(mathrand.IntN(256)), 1})
	}
	return g.strike(ctx, "POST", g.URL+"/dashboard/sign-in", strings.NewReader("password=x&name="+rand.Text()),
		map[string]string{"Content-Type": "application/x-www-form-urlencoded", "X-Forwarded-For": address.String()})
}

func longBody(g *target, ctx context.Context) (int, error) {
	return g.validateAsRogue(ctx, io.MultiReader(strings.NewReader(`{"api_key":"`), strings.NewReader(strings.Repeat("x", 1<<20))))
}

func deepJSON(g *target, ctx context.Context) (int, error) {
	return g.validateAsRogue(ctx, strings.NewReader(`{"api_key":`+strings.Repeat("[", 32_000)+strings.Repeat("]", 32_000)+`}`))
}

func (g *target) validateAsRogue(ctx context.Context, body io.Reader) (int, error) {
	return g.asRogue(ctx, "POST", "/validate", body)
}

func handshake(g *target, ctx context.Context) (int, error) {
	conn, err := g.dial(ctx, g.Gateway, "http/1.1")
	if err != nil {
		return 0, err
	}
	return opened, conn.Close()
}

func plainHTTP(g *target, ctx context.Context) (int, error) {
	return g.strike(ctx, "GET", "http://"+g.Gateway+"/v1/items", nil, nil)
}

// rapidResets opens 50 streams of one HTTP/2 connection and resets each at once.
func rapidResets(g *target, ctx context.Context) (int, error) {
	conn, err := g.dial(ctx, g.Gateway, "h2")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	var block, out bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", g.Gateway}, {":path", "/v1/items"}, {"x-api-key", g.Secret + "x"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
	}
	out.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&out, nil)
	_ = fr.WriteSettings()
	for i := range uint32(50) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		_ = fr.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
	}
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = conn.Write(out.Bytes()) // fails when the server gives up the connection
	_, _ = io.Copy(io.Discard, conn)
	return opened, nil
}

func slowHeaders(g *target, ctx context.Context) (int, error) {
	return g.trickle(ctx, g.Gateway, "GET /v1/items HTTP/1.1\r\nHost: "+g.Gateway+"\r\nX-Slow: ")
}

// slowBody has a valid owner's key, so that the body is waited for.
func slowBody(g *target, ctx context.Context) (int, error) {
	return g.trickle(ctx, g.API, "POST /functions/v1/validate HTTP/1.1\r\nHost: "+g.API+"\r\nAuthorization: Bearer "+rogueOwner+
		"\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n")
}

func slowReader(g *target, ctx context.Context) (int, error) {
	return g.trickle(ctx, g.Gateway, "GET /rogue/big HTTP/1.1\r\nHost: "+g.Gateway+"\r\nX-API-Key: "+g.Free+"\r\n\r\n")
}

// adjustment names a meter of an account with many large plans.
func adjustment(g *target, ctx context.Context) (int, error) {
	return g.asRogue(ctx, "POST", "/users/1/usage/adjust", strings.NewReader(`{"meter":"tokens","delta":1,"reason":"`+rand.Text()+`"}`))
}

// slowList reads the largest page of large plans byte by byte.
func slowList(g *target, ctx context.Context) (int, error) {
	return g.trickle(ctx, g.API, "GET /functions/v1/plans?limit=100 HTTP/1.1\r\nHost: "+g.API+"\r\nAuthorization: Bearer "+rogueOwner+"\r\n\r\n")
}

// requestID has a request id in a body of nearly 64 KiB.
func requestID(g *target, ctx context.Context) (int, error) {
	return g.asRogue(ctx, "POST", "/validate", strings.NewReader(`{"api_key":"`+g.Free+`","endpoint":"/x","method":"GET",`+
		strings.Repeat(" ", 62_000)+`"request_id":"`+rand.Text()+`"}`))
}

// unfinishedForm sends most of a form that signs in, from one of a few addresses.
func unfinishedForm(g *target, ctx context.Context) (int, error) {
	return g.trickle(ctx, g.API, "POST /dashboard/sign-in HTTP/1.1\r\nHost: "+g.API+"\r\nX-Forwarded-For: 198.51.100."+fmt.Sprint(mathrand.IntN(8))+
		"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 8000\r\n\r\nname="+strings.Repeat("x", 7_900))
}

func historyList(g *target, ctx context.Context) (int, error) {
	return g.asRogue(ctx, "GET", "/requests?limit=1", nil)
}

// filteredKeys asks for the keys of one user under a plan of many.
func filteredKeys(g *target, ctx context.Context) (int, error) {
	return g.asRogue(ctx, "GET", "/keys?user_id=1&plan_id="+g.RoguePlan, nil)
}

// asRogue sends a request to the REST API with the owner's key of the account rogue.
func (g *target) asRogue(ctx context.Context, method, path string, body io.Reader) (int, error) {
	return g.strike(ctx, method, g.URL+"/functions/v1"+path, body, map[string]string{"Authorization": "Bearer " + rogueOwner, "Content-Type": "application/json"})
}

// trickle sends the beginning of a request, and then sends and reads a byte every five
// seconds until the server gives up the connection.
func (g *target) trickle(ctx context.Context, addr, begin string) (int, error) {
	conn, err := g.dial(ctx, addr, "http/1.1")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_, err = io.WriteString(conn, begin)
	slow := time.NewTicker(5 * time.Second)
	defer slow.Stop()
	for b := []byte("x"); err == nil; {
		select {
		case <-ctx.Done():
			return opened, nil
		case <-slow.C:
		}
		if _, err = conn.Write(b); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, _ = conn.Read(b)
		}
	}
	return opened, nil
}

// dial opens a TLS connection to the gateway, or to another address, with a receive buffer
// so small that an answer is not taken in by the kernel.
func (g *target) dial(ctx context.Context, addr, proto string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	secure := tls.Client(conn, &tls.Config{ServerName: "localhost", InsecureSkipVerify: true, NextProtos: []string{proto}})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}
