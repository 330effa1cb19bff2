package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// billing is a fake of the API of a billing system, which adds up the accepted requests. It answers its second request with 503. It closes the connection of its
// fourth request, which it has accepted, without an answer.
type billing struct {
	*httptest.Server
	token string
	// accept returns the status and the text of the answer to a request.
	accept func(b *billing, r *http.Request, body []byte) (int, string)

	mu         sync.Mutex
	requests   int
	sums       map[string]int64 // by customer and meter, such as "cus_anna tokens"
	ids        map[string]bool
	duplicates int
	refused    []string
}

func newBilling(t *testing.T, accept func(*billing, *http.Request, []byte) (int, string)) *billing {
	b := &billing{token: "sk_test_1", accept: accept, sums: map[string]int64{}, ids: map[string]bool{}}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.requests++
		if b.requests == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		status, answer := http.StatusUnauthorized, `{"error":"the credentials are wrong"}`
		if r.Method == http.MethodPost && r.Header.Get("Authorization") == "Bearer "+b.token {
			status, answer = b.accept(b, r, body)
		}
		if b.requests == 4 {
			panic(http.ErrAbortHandler)
		}
		if status/100 != 2 {
			b.refused = append(b.refused, answer)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(b.Close)
	return b
}

// add adds to a sum, unless the id is known. It reports whether the id is new.
func (b *billing) add(id, of string, n int64) bool {
	if b.ids[id] {
		b.duplicates++
		return false
	}
	b.ids[id] = true
	b.sums[of] += n
	return true
}

var (
	stripeMembers = map[string]bool{"event_name": true, "identifier": true, "timestamp": true, "payload[value]": true, "payload[stripe_customer_id]": true}
	wholeNumber   = regexp.MustCompile(`^-?[0-9]{1,15}$`)
	stripeMeters  = map[string]string{"limitkeeper_requests": "requests", "limitkeeper_tokens": "tokens"}
	attributeName = regexp.MustCompile(`^[a-z0-9]{1,20}$`)
)

// stripe answers as POST /v1/billing/meter_events of Stripe does.
func stripe(b *billing, r *http.Request, body []byte) (int, string) {
	refuse := func(format string, args ...any) (int, string) {
		text, _ := json.Marshal(map[string]any{"error": map[string]string{"type": "invalid_request_error", "message": fmt.Sprintf(format, args...)}})
		return http.StatusBadRequest, string(text)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || r.URL.Path != "/v1/billing/meter_events" || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
		return refuse("no form for %s", r.URL.Path)
	}
	for name := range form {
		if !stripeMembers[name] {
			return refuse("Received unknown parameter: %s", name)
		}
	}
	meter, customer, value, id := stripeMeters[form.Get("event_name")], form.Get("payload[stripe_customer_id]"), form.Get("payload[value]"), form.Get("identifier")
	at, err := strconv.ParseInt(form.Get("timestamp"), 10, 64)
	age := time.Since(time.Unix(at, 0))
	switch {
	case meter == "":
		return refuse("No active meter found with the event name %q", form.Get("event_name"))
	case !strings.HasPrefix(customer, "cus_"):
		return refuse("No such customer: %q", customer)
	case !wholeNumber.MatchString(value):
		return refuse("Invalid value %q", value)
	case len(id) > 100:
		return refuse("Invalid string: the identifier has more than 100 characters")
	case form.Has("timestamp") && (err != nil || age > 35*24*time.Hour || age < -5*time.Minute):
		return refuse("The timestamp %q is not within the past 35 calendar days", form.Get("timestamp"))
	}
	n, _ := strconv.ParseInt(value, 10, 64)
	if !b.add(id, customer+" "+meter, n) {
		return refuse("An event already exists with identifier %s.", id)
	}
	return http.StatusOK, `{"object":"billing.meter_event"}`
}

// openMeter answers as POST /api/v1/events of OpenMeter does, with a meter of each value property $.meters.NAME.used.
func openMeter(b *billing, r *http.Request, body []byte) (int, string) {
	var event map[string]any
	if r.URL.Path != "/api/v1/events" || r.Header.Get("Content-Type") != "application/cloudevents+json" || json.Unmarshal(body, &event) != nil {
		return http.StatusBadRequest, "not a CloudEvents event in JSON"
	}
	for name := range event {
		if !attributeName.MatchString(name) {
			return http.StatusBadRequest, "the name of the attribute " + name
		}
	}
	text := func(name string) string { s, _ := event[name].(string); return s }
	data, isObject := event["data"].(map[string]any)
	_, err := time.Parse(time.RFC3339, text("time"))
	if text("specversion") != "1.0" || text("id") == "" || text("source") == "" || text("type") == "" || text("subject") == "" || err != nil || !isObject {
		return http.StatusBadRequest, "a required attribute is missing or wrong"
	}
	meters, _ := data["meters"].(map[string]any)
	values := map[string]int64{}
	for meter, numbers := range meters {
		of, _ := numbers.(map[string]any)
		used, ok := of["used"].(float64)
		if !ok {
			return http.StatusBadRequest, "the value of " + meter
		}
		values[meter] = int64(used)
	}
	if b.add(text("source")+" "+text("id"), "", 0) {
		for meter, n := range values {
			b.sums[text("subject")+" "+meter] += n
		}
	}
	return http.StatusNoContent, ""
}

// lago answers as POST /api/v1/events of Lago does, with billable metrics that sum the field used.
func lago(b *billing, r *http.Request, body []byte) (int, string) {
	refuse := func(member, why string) (int, string) {
		return http.StatusUnprocessableEntity, fmt.Sprintf(`{"status":422,"error":"Unprocessable Entity","code":"validation_errors","error_details":{%q:[%q]}}`, member, why)
	}
	var sent struct {
		Event *struct {
			TransactionID string `json:"transaction_id"`
			Subscription  string `json:"external_subscription_id"`
			Code          string
			Timestamp     json.Number
			Properties    map[string]json.Number
		}
	}
	if r.URL.Path != "/api/v1/events" || r.Header.Get("Content-Type") != "application/json" || json.Unmarshal(body, &sent) != nil || sent.Event == nil {
		return http.StatusBadRequest, `{"status":400,"error":"Bad Request"}`
	}
	e := sent.Event
	n, wrong := e.Properties["used"].Int64()
	_, notSeconds := e.Timestamp.Float64()
	switch {
	case e.TransactionID == "":
		return refuse("transaction_id", "value_is_mandatory")
	case e.Code == "":
		return refuse("code", "value_is_mandatory")
	case !strings.HasPrefix(e.Subscription, "cus_"):
		return http.StatusNotFound, `{"status":404,"error":"Not Found","code":"subscription_not_found"}`
	case notSeconds != nil:
		return refuse("timestamp", "invalid_format")
	case wrong != nil:
		return refuse("properties", "value_is_not_valid_number")
	case stripeMeters[e.Code] == "":
		return http.StatusOK, "{}" // accepted and ignored
	case !b.add(e.Subscription+" "+e.TransactionID, e.Subscription+" "+stripeMeters[e.Code], n):
		return refuse("transaction_id", "value_already_exist")
	}
	return http.StatusOK, "{}"
}
