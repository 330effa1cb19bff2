package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// storeSpec is a store given on the command line.
type storeSpec struct {
	raw       json.RawMessage // the store module in JSON, as in the config of the app
	retention time.Duration   // the configured history_retention, or 0
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
	return &storeSpec{raw: raw}, err
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
	var app App
	if err := json.Unmarshal(raw, &app); err != nil {
		return nil, fmt.Errorf("%s: the app %s: %w", file, appName, err)
	}
	if app.StoreRaw == nil {
		app.StoreRaw = json.RawMessage(`{"module": "badger"}`)
	}
	return &storeSpec{raw: app.StoreRaw, retention: time.Duration(app.HistoryRetention)}, nil
}

// load loads the module of the store, without opening the store.
func (s *storeSpec) load(ctx caddy.Context) (StoreModule, error) { return loadStore(ctx, s.raw) }

// isThere returns an error if a store to read does not exist. Opening an embedded store would
// create it.
func isThere(m StoreModule) error {
	b, ok := m.(*BadgerStore)
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
