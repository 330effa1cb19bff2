package command

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

func init() {
	for _, c := range []caddycmd.Command{
		{Name: "account", Usage: "create|list|set|rename|disable|enable|delete|sign-in|key|webhook", Short: "Manages accounts and their owner's keys on a running server",
			Long: accountHelp, CobraFunc: accountCommand},
		{Name: "apply", Usage: "FILE [--account NAME] [--dry-run] [--prune] [--store <store>] [--json]",
			Short: "Makes the prices, plans, users and keys of an account equal to a file", Long: applyHelp, CobraFunc: applyCommand},
		{Name: "backup", Usage: "FILE [--store <store>] [--rate <bytes>]", Short: "Writes everything to a file, while the server runs",
			Long: backupHelp, CobraFunc: backupCommand},
		{Name: "check", Usage: "--store <store>", Short: "Verifies every file of a stopped embedded store", Long: checkHelp, CobraFunc: checkCommand},
		{Name: "clock", Usage: "accept", Short: "Accepts a jump of the clock on a running server", Long: clockHelp, CobraFunc: clockCommand},
		{Name: "export", Usage: "[FILE] [--account NAME] [--no-history] [--store <store>]", Short: "Writes accounts to a file",
			Long: exportHelp, CobraFunc: exportCommand},
		{Name: "health", Usage: "URL", Short: "Asks a running server for its health", Long: healthHelp, CobraFunc: healthCommand},
		{Name: "import", Usage: "FILE|--csv FILE [--account NAME] [--no-history] [--dry-run] [--store <store>]", Short: "Adds the accounts of a file, or keys from CSV, to a store",
			Long: importHelp, CobraFunc: importCommand},
		{Name: "migrate", Usage: "--from <store> --to <store> [--history-retention <30d>]", Short: "Copies everything from one store to another",
			Long: migrateHelp, CobraFunc: migrateCommand},
		{Name: "protect", Usage: "[--to <host:port>] [--from <:8443>] [--api <:8444>] [--data <dir>] [--demo] [--trust]",
			Short: "Protects an upstream with usage limits, without a config", Long: protectHelp, CobraFunc: protectCommand},
		{Name: "repair", Usage: "--store <store> [--yes]", Short: "Accepts what damage of an event log has cost, so that the store opens again",
			Long: repairHelp, CobraFunc: repairCommand},
		{Name: "restore", Usage: "FILE --store <store>", Short: "Fills an empty store from a backup", Long: restoreHelp, CobraFunc: restoreCommand},
		{Name: "store", Usage: "accept", Short: "Manages the store of a running server", Long: storeHelp, CobraFunc: storeCommand},
		{Name: "usage", Usage: "adjust|report|feed|verify", Short: "Adjusts, reports and verifies the usage of an account on a running server", Long: usageHelp, CobraFunc: usageCommand},
	} {
		caddycmd.RegisterCommand(c)
	}
}
