package command

import (
	"cmp"
	"net/http"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The header fields by which a command names itself and its user to the server, for the audit log. The admin endpoint trusts its clients.
const (
	commandHeader = "Limitkeeper-Command"
	userHeader    = "Limitkeeper-User"
)

// maxActor bounds the name of a command and of a user, in bytes.
const maxActor = 128

// actorOf returns the actor of a command: the command, such as "account key create", and the user of the system. Under sudo, that is SUDO_USER.
func actorOf(cmd *cobra.Command) core.Actor {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	who := os.Getenv("SUDO_USER")
	if u, err := user.Current(); err == nil && who == "" {
		who = u.Username
	}
	return core.Actor{Kind: core.ActorCommand, ID: secrets.Sanitize(name, maxActor), Name: secrets.Sanitize(who, maxActor)}
}

func actorHeader(a core.Actor) http.Header {
	return http.Header{commandHeader: {a.ID}, userHeader: {a.Name}}
}

// actorIn returns the actor of a request to the admin endpoint. Without the header of a command, the id is the method and the path.
func actorIn(r *http.Request) core.Actor {
	id := cmp.Or(r.Header.Get(commandHeader), r.Method+" "+r.URL.Path)
	return core.Actor{Kind: core.ActorCommand, ID: secrets.Sanitize(id, maxActor), Name: secrets.Sanitize(r.Header.Get(userHeader), maxActor)}
}
