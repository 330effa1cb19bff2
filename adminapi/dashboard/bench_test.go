package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/core/signin"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// BenchmarkPages renders pages of an account with 100,000 users, each with a key that was
// used, on a store on disk.
func BenchmarkPages(b *testing.B) {
	const users = 100_000
	store, err := badgerstore.Open(b.TempDir(), badgerstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	var pages atomic.Int64
	clock := func() time.Time {
		return time.Now().Add(time.Duration(pages.Load()) * service.DashboardWindow / service.DashboardLimit)
	}
	svc := service.New(store, service.Config{Clock: clock}) // as slow as a person may be
	ctx := context.Background()
	a, _, _, err := svc.CreateAccount(ctx, "Acme")
	if err != nil {
		b.Fatal(err)
	}
	pl, keys := storetest.Fill(b, store, a.ID, users)
	for i, k := range keys {
		c := core.Consumption{Account: a.ID, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Terms: pl.Terms(), Cost: int64(i%900 + 1),
			Entry: core.Entry{At: svc.Now(), KeyID: k.ID, UserID: k.UserID, Endpoint: "/", Method: "GET"}, Retention: core.DefaultRetention}
		if _, err := store.Consume(ctx, &c); err != nil {
			b.Fatal(err)
		}
	}
	handler := dashboard.New(dashboard.Config{Service: func() *service.Service { return svc },
		Secure: func(*http.Request) bool { return true }, ClientIP: func(*http.Request) string { return "192.0.2.1" }, Email: func(*http.Request) string { return "" }, Logger: discard})
	_, link, _, err := svc.SignIn.NewLink(ctx, "Acme")
	if err != nil {
		b.Fatal(err)
	}
	in, err := svc.SignIn.ByLink(ctx, link, signin.Client{})
	if err != nil {
		b.Fatal(err)
	}
	for name, path := range map[string]string{
		"users": "users", "users, last page": "users?page=4000", "search, an email": "users?q=user99999@example.com",
		"search, a common name": "users?q=user", "search, nothing": "users?q=" + url.QueryEscape("nobody at all"),
		"keys": "keys", "plan": "plans/" + pl.ID, "user": "users/777", "overview": "",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				pages.Add(1)
				r := httptest.NewRequest("GET", "https://example.com/dashboard/"+path, nil)
				r.AddCookie(&http.Cookie{Name: "__Secure-limitkeeper", Value: in.Session})
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatal(fmt.Sprint("got ", w.Code, ": ", w.Body))
				}
			}
		})
	}
}

// BenchmarkFirstPage loads the first page in a browser that has nothing of it, and says when it
// can be used, its scripts included, and when all of it is there: the medians of what the browser
// measures (Navigation Timing Level 2) from the fetch on. The first few are slow.
func BenchmarkFirstPage(b *testing.B) {
	s := newSite(b)
	s.filled()
	ctx := chrome(b)
	forget := chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true})
		return err
	})
	if err := chromedp.Do(ctx, s.signIn("Acme"), forget); err != nil {
		b.Fatal(err)
	}
	const timing = `performance.getEntriesByType("navigation")[0]`
	var usable, loaded []float64
	for b.Loop() {
		if err := chromedp.Do(ctx, chromedp.Navigate(s.url+"/dashboard/"), until(timing+".loadEventEnd > 0")); err != nil {
			b.Fatal(err)
		}
		for _, of := range []struct {
			list *[]float64
			at   string
		}{{&usable, "domContentLoadedEventEnd"}, {&loaded, "loadEventEnd"}} {
			ms, err := chromedp.Run(ctx, chromedp.Evaluate[float64](timing+"."+of.at+" - "+timing+".fetchStart"))
			if err != nil {
				b.Fatal(err)
			}
			*of.list = append(*of.list, ms)
		}
	}
	for unit, list := range map[string][]float64{"usable-ms": usable, "loaded-ms": loaded} {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], unit)
	}
}
