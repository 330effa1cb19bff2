// Package caddymodule makes Limitkeeper a part of Caddy.
//
// # The modules
//
//   - [App], the app limitkeeper: holds the store and the counting service over it.
//   - [BadgerStore], limitkeeper.store.badger: the embedded store.
//   - [Gateway], http.handlers.limitkeeper: stands in front of an upstream, counts
//     every request against the plan of the caller's key, and refuses what is over.
//   - [API], http.handlers.limitkeeper_api: serves the REST API.
//   - [AdminAPI], admin.api.limitkeeper: accounts and owner's keys on Caddy's admin
//     endpoint, for the commands.
//
// Beside them are the Caddyfile directives and the global option limitkeeper, and
// the commands account and protect.
//
// # One store over many configs
//
// Caddy loads a new config beside the running one and stops the old one only when
// the new one runs. Both need the store, which can be opened once. So the store
// lives in a pool, under a name for what it is and not for how it is set: a reload
// finds it open, whatever it changes. An app takes its reference while it is
// provisioned if the store is open by then, so that its handlers are ready before
// the first request, and otherwise when it is started: validating a config opens
// nothing. What may change while the store is open is put in force by Start and
// taken back by Stop, so that a config that is rejected leaves no trace.
package caddymodule
