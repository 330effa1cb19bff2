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
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// appName is the name of Limitkeeper's app in a config.
const appName = "limitkeeper"

// namedStore is a store that a flag names.
type namedStore struct {
	flag      string
	module    caddymodule.StoreModule
	retention time.Duration    // the configured history_retention, or 0
	tunables  service.Tunables // the configured settings, or the defaults
}

// loadNamed loads the module of the store that a flag names, without opening the store: badger:<dir>, redis:<address>[,<address>…] or
// config:<file>. With exists the store must exist.
func loadNamed(ctx caddy.Context, flag, value, adapter string, exists bool) (n *namedStore, err error) {
	n = &namedStore{flag: flag}
	app, err := namedApp(value, adapter)
	if err == nil {
		n.retention = time.Duration(app.HistoryRetention)
		n.tunables, err = app.Tunables()
	}
	if err == nil {
		n.module, err = caddymodule.LoadStore(ctx, app.StoreRaw)
	}
	if err == nil && exists {
		err = isThere(n.module)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return n, nil
}

// namedApp returns the configuration of a store on the command line.
func namedApp(spec, adapter string) (*caddymodule.App, error) {
	kind, rest, _ := strings.Cut(spec, ":")
	module := map[string]any{"module": kind}
	switch {
	case spec == "":
		return nil, errors.New("name a store: badger:<dir>, redis:<address> or config:<file>")
	case rest != "" && kind == "badger":
		module["dir"] = rest
	case rest != "" && kind == "redis":
		module["addresses"] = strings.Split(rest, ",")
	case rest != "" && kind == "config":
		return configuredApp(rest, adapter)
	default:
		return nil, fmt.Errorf("want badger:<dir>, redis:<address> or config:<file>, got %q", spec)
	}
	raw, err := json.Marshal(module)
	return &caddymodule.App{StoreRaw: raw}, err
}

// configuredApp returns the app of a config file.
func configuredApp(file, adapter string) (*caddymodule.App, error) {
	b, _, _, err := caddycmd.LoadConfig(file, adapter)
	if err != nil {
		return nil, err
	}
	var config caddy.Config
	app := new(caddymodule.App)
	if err := json.Unmarshal(b, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	raw, ok := config.AppsRaw[appName]
	if !ok {
		return nil, fmt.Errorf("%s configures no store: it has no app %s", file, appName)
	}
	if err := json.Unmarshal(raw, app); err != nil {
		return nil, fmt.Errorf("%s: the app %s: %w", file, appName, err)
	}
	return app, nil
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

// use opens the store, which no server uses, calls fn and closes the store. What fn has written is durable only if use
// returns nil. Errors of the store begin with the flag that names the store.
func (n *namedStore) use(cmd *cobra.Command, fn func(core.Store) error) (err error) {
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := n.module.Open(log, n.tunables, nil)
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
