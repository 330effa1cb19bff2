package command

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

const healthHelp = `
Requests URL and exits with 0 if the answer is 200, otherwise with 1. Use it as
the health check of a container that has no shell and no curl.
`

// healthTimeout is how long the command health waits for an answer.
const healthTimeout = 10 * time.Second

// healthCommand adds the arguments of the command health.
func healthCommand(cmd *cobra.Command) {
	cmd.Example = "  limitkeeper health http://127.0.0.1:8081/functions/v1/health/ready"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || !strings.HasPrefix(args[0], "http://") && !strings.HasPrefix(args[0], "https://") {
			return errors.New("give one URL that begins with http:// or https://, such as http://127.0.0.1:8081/functions/v1/health/ready")
		}
		client := http.Client{Timeout: healthTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		resp, err := client.Get(args[0])
		if err != nil {
			return explainHealth(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		if err != nil {
			return err
		}
		body = bytes.TrimSpace(body)
		if to := resp.Header.Get("Location"); to != "" {
			return fmt.Errorf("%s redirects to %s: ask a port that answers itself, such as one of a site http://:8081", resp.Request.URL.Redacted(), printable(secrets.MaskSecrets(to)))
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s: %s", resp.Request.URL.Redacted(), resp.Status, printable(string(body)))
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(string(body)))
		return err
	}
}

// explainHealth adds the remedy to an error of a request that got no answer.
func explainHealth(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: no server listens on this port", err)
	}
	if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); unknown {
		return fmt.Errorf("%w: ask a port with plain HTTP, or name the file of your CA in SSL_CERT_FILE", err)
	}
	return err
}
