package main

import (
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// brandCommand is the name of a hidden command. Caddy gives access to its root command only to a running
// command. brandCommand changes the root command and then runs the command line.
const brandCommand = "change-root"

// runAsLimitkeeper runs the command line after replacing Caddy's name and version in the root
// command.
func runAsLimitkeeper() {
	args := os.Args
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  brandCommand,
		Short: "Runs the command line with the texts and the version of Limitkeeper",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Hidden, cmd.SilenceErrors = true, true // the command that runs says its errors itself
			cmd.RunE = func(cmd *cobra.Command, _ []string) error {
				os.Args = args
				root := cmd.Root()
				root.RemoveCommand(cmd)
				removeDownloads(root)
				changeTexts(root)
				changeVersion(root)
				root.SetHelpTemplate(strings.Replace(root.HelpTemplate(), "Full documentation is", docsOfLimitkeeper+"The documentation of Caddy's commands is", 1))
				root.SetArgs(args[1:])
				return root.Execute()
			}
		},
	})
	os.Args = []string{args[0], brandCommand}
	caddycmd.Main()
}

// docsOfLimitkeeper precedes Caddy's line about the documentation in each help text.
const docsOfLimitkeeper = "The documentation of Limitkeeper is available at:\nhttps://github.com/limitkeeper/limitkeeper/tree/main/docs\n\n"

// removeDownloads removes the commands of Caddy that replace the binary with a build of caddyserver.com. Such a build has no
// Limitkeeper, and the commands panic in a binary whose main module has modules of Caddy.
func removeDownloads(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if slices.Contains([]string{"upgrade", "add-package", "remove-package"}, cmd.Name()) {
			root.RemoveCommand(cmd)
		}
	}
}

// changeTexts replaces the name of the binary in the help of all commands.
func changeTexts(root *cobra.Command) {
	var names []string
	for _, cmd := range root.Commands() {
		names = append(names, regexp.QuoteMeta(cmd.Name()))
	}
	example := regexp.MustCompile(`\bcaddy (` + strings.Join(names, "|") + `)\b`)
	change := func(s *string) { *s = example.ReplaceAllString(*s, root.Name()+" $1") }
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		change(&cmd.Long)
		change(&cmd.Example)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// changeVersion adds our version to the command version and the flag --version.
func changeVersion(root *cobra.Command) {
	_, caddyVersion := caddy.Version()
	ours, badger := moduleVersions()
	root.Version = "limitkeeper " + ours + "\nCaddy " + caddyVersion + "\nBadger " + badger
	for _, cmd := range root.Commands() {
		if cmd.Name() == "version" {
			cmd.Long = "Prints the versions of Limitkeeper, of Caddy and of Badger, a line each."
			cmd.RunE = func(cmd *cobra.Command, _ []string) error {
				_, err := cmd.OutOrStdout().Write([]byte(root.Version + "\n"))
				return err
			}
		}
	}
}
