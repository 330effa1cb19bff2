package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// appName is the name of Limitkeeper's app in a config.
const appName = "limitkeeper"

// storeSpec is a store given on the command line.
type storeSpec struct {
	raw       json.RawMessage // the store module in JSON, as in the config of the app
	retention time.Duration   // the configured history_retention, or 0
	tunables  core.Tunables   // the configured settings, or the defaults
}

// parseStoreSpec parses badger:<dir>, redis:<address>[,<address>…] or config:<file>.
func parseStoreSpec(spec, adapter string) (*storeSpec, error) {
	kind, rest, _ := strings.Cut(spec, ":")
	switch {
	case spec == "":
		return nil, errors.New("name a store: badger:<dir>, redis:<address> or config:<file>")
	case rest == "":
	case kind == "badger":
		return newStoreSpec(map[string]any{"module": kind, "dir": rest})
	case kind == "redis":
		return newStoreSpec(map[string]any{"module": kind, "addresses": strings.Split(rest, ",")})
	case kind == "config":
		return configuredStore(rest, adapter)
	}
	return nil, fmt.Errorf("want badger:<dir>, redis:<address> or config:<file>, got %q", spec)
}

func newStoreSpec(module map[string]any) (*storeSpec, error) {
	raw, err := json.Marshal(module)
	return &storeSpec{raw: raw, tunables: core.DefaultTunables()}, err
}

// configuredStore returns the store of a config file.
func configuredStore(file, adapter string) (*storeSpec, error) {
	b, _, _, err := caddycmd.LoadConfig(file, adapter)
	if err != nil {
		return nil, err
	}
	var config struct {
		Apps map[string]json.RawMessage `json:"apps"`
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	raw, ok := config.Apps[appName]
	if !ok {
		return nil, fmt.Errorf("%s configures no store: it has no app %s", file, appName)
	}
	var app caddymodule.App
	if err := json.Unmarshal(raw, &app); err != nil {
		return nil, fmt.Errorf("%s: the app %s: %w", file, appName, err)
	}
	if app.StoreRaw == nil {
		app.StoreRaw = json.RawMessage(`{"module": "badger"}`)
	}
	tunables, err := app.Tunables()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &storeSpec{app.StoreRaw, time.Duration(app.HistoryRetention), tunables}, nil
}

// isThere returns an error if a store to read does not exist. Opening an embedded store would
// create it.
func isThere(m caddymodule.StoreModule) error {
	b, ok := m.(*caddymodule.BadgerStore)
	if !ok {
		return nil
	}
	there, err := badgerstore.Exists(b.Dir)
	if err != nil || there {
		return err
	}
	within := filepath.Join(b.Dir, "limitkeeper") // the directory that the command protect uses
	if there, err = badgerstore.Exists(within); err == nil && there {
		return fmt.Errorf("there is no store in %s: it is in %s", b.Dir, within)
	}
	return fmt.Errorf("there is no store in %s", b.Dir)
}

// namedStore is a store that a flag names.
type namedStore struct {
	*storeSpec
	flag   string
	module caddymodule.StoreModule
}

// loadNamed loads the module of the store that a flag names, without opening the store. With exists the store must exist.
func loadNamed(ctx caddy.Context, flag, value, adapter string, exists bool) (n *namedStore, err error) {
	n = &namedStore{flag: flag}
	if n.storeSpec, err = parseStoreSpec(value, adapter); err == nil {
		if n.module, err = caddymodule.LoadStore(ctx, n.raw); err == nil && exists {
			err = isThere(n.module)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return n, nil
}

// use opens the store, which no server uses, calls fn and closes the store. What fn has written is durable only if use
// returns nil. Errors of the store begin with the flag that names the store.
func (n *namedStore) use(cmd *cobra.Command, t core.Tunables, fn func(core.Store) error) (err error) {
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := n.module.Open(log, t, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", n.flag, err)
	}
	defer func() {
		if closed := s.Close(); closed != nil {
			err = errors.Join(err, fmt.Errorf("%s: closing the store: %w", n.flag, closed))
		}
	}()
	return fn(s)
}
