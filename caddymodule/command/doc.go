// Package command has Limitkeeper's commands, and the routes of Caddy's admin endpoint that the commands call:
//
//   - on a running server, over its admin endpoint: account, apply, usage, clock, store, backup, export and import.
//   - on a store that no server uses, which --store names: apply, backup, export, import, restore, migrate, check and
//     repair.
//   - without a config: protect runs a server of its own.
//
// [AdminAPI], admin.api.limitkeeper, is the module of the admin endpoint. The handler of a route is in the file of its
// command: both sides share the types of requests and answers, which no other package uses.
//
// The package uses package caddymodule in three ways: [caddymodule.RunningStore] for the routes, [caddymodule.LoadStore]
// for --store, and [caddymodule.BadgerStore] for the commands on a stopped embedded store.
package command
