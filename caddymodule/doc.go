// Package caddymodule connects Limitkeeper to Caddy: modules, Caddyfile, commands and metrics.
//
// # The modules
//
//   - [App], the app limitkeeper: holds the store and the service that counts in it.
//   - [BadgerStore], limitkeeper.store.badger: the embedded store.
//   - [RedisStore], limitkeeper.store.redis: the store that several nodes share.
//   - [Gateway], http.handlers.limitkeeper: counts each request against the plan of the
//     caller's key, and refuses requests over the quota.
//   - [API], http.handlers.limitkeeper_api: serves the REST API and the dashboard.
//   - [AdminAPI], admin.api.limitkeeper: serves the commands on Caddy's admin endpoint.
//
// The package also has the Caddyfile directives limitkeeper and limitkeeper_api, the global
// option limitkeeper, and the commands account, apply, usage, protect, backup, restore, export, import, migrate, check, repair,
// rebuild, clock and store.
//
// # One store for many configs
//
// During a reload Caddy runs the old and the new config side by side, and a second instance
// cannot open an embedded store. The store is therefore in a pool. Its key is the identity of
// the store, such as the directory, and not its settings, so a reload finds the store open.
//
//	Provision  acquires the store if it is open already: no request of a reload waits
//	Start      opens the store otherwise: validating a config opens nothing
//	"started"  applies settings and creates accounts, once all apps of the config run
//	Stop       withdraws the settings
//	Cleanup    releases the store; the last release closes it
//
// A rejected config therefore changes nothing.
package caddymodule
