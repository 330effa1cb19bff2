package dashboard_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// unfinishedBody is a body that does not come until end is closed.
type unfinishedBody struct{ reading, end chan struct{} }

// Read implements [io.Reader].
func (b unfinishedBody) Read([]byte) (int, error) {
	b.reading <- struct{}{}
	<-b.end
	return 0, io.ErrUnexpectedEOF
}

// Unfinished sign-ins of one block of addresses leave room for sign-ins of other blocks. A failure means that the holder of an IPv6 /48 can keep
// everyone from signing in.
func TestUnfinishedSignInsOfBlock(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	pages := dashboard.New(dashboard.Config{
		Service:  func() *service.Service { return svc },
		Secure:   func(*http.Request) bool { return true },
		ClientIP: func(r *http.Request) string { return r.RemoteAddr },
		Email:    func(*http.Request) string { return "" },
		Logger:   slog.New(slog.DiscardHandler),
	})
	b := unfinishedBody{make(chan struct{}), make(chan struct{})}
	answers := make(chan int)
	signIn := func(address string) {
		go func() {
			r := httptest.NewRequest("POST", "https://a/dashboard/sign-in", b)
			r.RemoteAddr = address
			w := httptest.NewRecorder()
			pages.ServeHTTP(w, r)
			answers <- w.Code
		}()
	}
	// reads waits until the body of the latest sign-in is read, or the sign-in is refused.
	reads := func() bool {
		select {
		case <-b.reading:
			return true
		case status := <-answers:
			if status != http.StatusServiceUnavailable {
				t.Errorf("a refused sign-in: got %d, want 503", status)
			}
			return false
		}
	}
	const most = 256
	for name, address := range map[string]func(i int) string{
		"a /48":         func(i int) string { return fmt.Sprintf("2001:db8:1:%x::1", i/16) },
		"another /48":   func(i int) string { return fmt.Sprintf("2001:db8:2:%x::1", i/16) },
		"a /24 of IPv4": func(i int) string { return fmt.Sprintf("198.51.100.%d", i/16) },
	} {
		for i := range most + 1 {
			signIn(address(i))
			if got, want := reads(), i < most; got != want {
				t.Fatalf("sign-in %d of %s: read %t, want %t", i+1, name, got, want)
			}
		}
	}
	close(b.end)
	for range 3 * most {
		if status := <-answers; status != http.StatusBadRequest {
			t.Fatalf("a form that ends early: got %d, want 400", status)
		}
	}
	signIn("2001:db8:1::1")
	if !reads() {
		t.Error("all sign-ins have ended, and another is refused")
	}
}
