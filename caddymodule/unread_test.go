package caddymodule

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
)

// sendHead sends the head of a request over a connection of its own, and returns the answer and the connection.
func (s *server) sendHead(head string) (*http.Response, *bufio.Reader, net.Conn) {
	s.T.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+s.Port)
	s.Must(err)
	s.T.Cleanup(func() { _ = conn.Close() })
	s.Must(conn.SetDeadline(time.Now().Add(20 * time.Second))) // net/http waits longer for the body
	_, err = fmt.Fprint(conn, head)
	s.Must(err)
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		s.T.Fatalf("no answer to %q: %v", head, err)
	}
	return answer, in, conn
}

// A request that is refused before its body is answered at once: the client may wait for "100 Continue", or for ever.
func TestRefusedBeforeBody(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper_api\n@site not path /functions/* /dashboard/*\nroute @site {\nlimitkeeper\n"+up.proxy()+"\n}")
	s.Tenant("default", 10)
	for name, tt := range map[string]struct {
		path   string
		status int
	}{
		"gateway":   {"/x", http.StatusUnauthorized},
		"REST":      {APIBase + "/users", http.StatusUnauthorized},
		"health":    {APIBase + "/health", http.StatusMethodNotAllowed},
		"dashboard": {dashboard.Base + "users", http.StatusSeeOther},
	} {
		for how, fields := range map[string]string{
			"waits for 100 Continue": "Content-Length: 100000\r\nExpect: 100-continue\r\n",
			"sends slowly":           "Content-Length: 1000\r\n",
			"sends chunks":           "Transfer-Encoding: chunked\r\n",
		} {
			answer, _, _ := s.sendHead("POST " + tt.path + " HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Proto: https\r\n" + fields + "\r\n")
			if answer.StatusCode != tt.status || !answer.Close {
				t.Errorf("%s, client %s: got %d, closes %t; want %d, and that it closes", name, how, answer.StatusCode, answer.Close, tt.status)
			}
		}
		whole := "POST " + tt.path + " HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Proto: https\r\nContent-Length: 5\r\n\r\nhello"
		if answer, _, _ := s.sendHead(whole); answer.StatusCode != tt.status || answer.Close {
			t.Errorf("%s, a small body: got %d, closes %t; want %d, and that the connection stays", name, answer.StatusCode, answer.Close, tt.status)
		}
	}
}

// Early data can be recorded and sent again by anyone: nothing in it is counted, changed or forwarded.
func TestEarlyData(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper_api\n@site not path /functions/* /dashboard/*\nroute @site {\nlimitkeeper\n"+up.proxy()+"\n}")
	ten := s.Tenant("default", 10)
	owner := "Authorization: Bearer " + ten.Owner
	validate := fmt.Sprintf(`{"api_key":%q,"endpoint":"/x","method":"GET"}`, ten.Secret)
	for _, tt := range []struct {
		method, path, body, auth string
		early, late              int
	}{
		{"GET", "/x", "", "X-API-Key: " + ten.Secret, 425, 200},
		{"POST", APIBase + "/validate", validate, owner, 425, 200},
		{"POST", APIBase + "/users", `{"name":"u"}`, owner, 425, 201},
		{"DELETE", APIBase + "/keys/key_none", "", owner, 425, 404},
		{"GET", APIBase + "/users", "", owner, 200, 200},
		{"POST", dashboard.Base + "sign-in", "name=a&password=b", "Content-Type: application/x-www-form-urlencoded", 425, 403},
		{"GET", dashboard.Base + "sign-in", "", "Accept: text/html", 200, 200},
	} {
		before, forwarded := s.used(ten), up.count.Load()
		if got := s.Send(tt.method, tt.path, tt.body, tt.auth, "X-Forwarded-Proto: https", "Early-Data: 1"); got.StatusCode != tt.early {
			t.Errorf("%s %s in early data: got %d %s, want %d", tt.method, tt.path, got.StatusCode, got.Text, tt.early)
		}
		if s.used(ten) != before || up.count.Load() != forwarded {
			t.Errorf("%s %s in early data: it was counted or forwarded", tt.method, tt.path)
		}
		if got := s.Send(tt.method, tt.path, tt.body, tt.auth, "X-Forwarded-Proto: https"); got.StatusCode != tt.late {
			t.Errorf("%s %s afterwards: got %d %s, want %d", tt.method, tt.path, got.StatusCode, got.Text, tt.late)
		}
	}
}

// Unfinished forms of strangers hold few bytes, and another client can still sign in.
func TestUnfinishedForms(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper_api")
	s.Tenant("default", 10)
	answers := make(chan int, 24)
	for range cap(answers) {
		conn, err := net.Dial("tcp", "127.0.0.1:"+s.Port)
		s.Must(err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = fmt.Fprint(conn, "POST "+dashboard.Base+"sign-in HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 198.51.100.7\r\n"+
			"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 8000\r\n\r\nname=")
		s.Must(err)
		go func() {
			if answer, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil && answer.Close {
				answers <- answer.StatusCode
			}
		}()
	}
	await := func(n, want int) {
		t.Helper()
		for range n {
			select {
			case status := <-answers:
				if status != want {
					t.Errorf("an unfinished form: got %d, want %d", status, want)
				}
			case <-time.After(time.Minute):
				t.Fatalf("an unfinished form gets no answer, want %d", want)
			}
		}
	}
	await(8, http.StatusServiceUnavailable) // 16 forms may be unfinished
	got := s.Send("POST", dashboard.Base+"sign-in", "name=a&password=b", "Content-Type: application/x-www-form-urlencoded",
		"X-Forwarded-Proto: https", "X-Forwarded-For: 203.0.113.8")
	if got.StatusCode != http.StatusForbidden {
		t.Errorf("a form of another client: got %d, want the answer to a wrong password", got.StatusCode)
	}
	await(16, http.StatusBadRequest) // after 20 s; one of them is 503 if more than 8 were refused
}
