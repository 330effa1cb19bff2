package webhook_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// BenchmarkDeliver delivers events of 100 subjects to one webhook whose receiver takes 20 ms.
func BenchmarkDeliver(b *testing.B) {
	for name, open := range map[string]func() (core.Store, error){
		"memory": func() (core.Store, error) { return memstore.New(), nil },
		"badger": func() (core.Store, error) { return badgerstore.Open(b.TempDir(), badgerstore.Options{}) },
	} {
		b.Run(name, func(b *testing.B) {
			store, err := open()
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = store.Close() })
			r := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(20 * time.Millisecond)
				w.WriteHeader(http.StatusNoContent)
			}))
			b.Cleanup(r.Close)
			svc := service.New(store, service.Config{})
			svc.Tune(service.Tunables{WebhookAllowPrivate: true})
			a, _, _, err := svc.CreateAccount(b.Context(), "acme")
			if err == nil {
				_, err = svc.CreateWebhook(b.Context(), a.ID, core.WebhookPatch{URL: &r.URL})
			}
			var events []*core.Event
			for i := range b.N {
				now := time.Now()
				events = append(events, &core.Event{ID: fmt.Sprint("e-", i), Type: core.EventThreshold, Subject: fmt.Sprint("key_", i%100), At: now, Until: now.Add(time.Hour)})
			}
			if err == nil {
				err = svc.PutEvents(b.Context(), a.ID, events...)
			}
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			d := startDeliverer(b, svc, store)
			for d.Stats().Delivered < int64(b.N) {
				time.Sleep(time.Millisecond)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
