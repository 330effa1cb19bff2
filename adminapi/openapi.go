package adminapi

import (
	_ "embed"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core/service"
)

//go:embed openapi.yaml
var openapi string

// openAPI answers with openapi.yaml, which then states the service_rate_limit in force.
func openAPI(c *call) error {
	text := openapi
	if svc := c.config.Service(); svc != nil {
		text = strings.Replace(text, throttleText(service.DefaultThrottleLimit, service.DefaultThrottleWindow), throttleText(svc.ThrottleLimit()), 1)
	}
	c.w.Header().Set("Content-Type", "application/yaml")
	_, _ = io.WriteString(c.w, text) // the client may have disconnected
	return nil
}

// throttleText states a service_rate_limit, as openapi.yaml states the default.
func throttleText(requests int, window time.Duration) string {
	if requests <= 0 {
		return "The requests of an owner's key have no limit."
	}
	return fmt.Sprintf("Per owner's key at most %d requests are served in any %v seconds, and ten times as many per account. "+
		"A refused request does not count.", requests, window.Seconds())
}
