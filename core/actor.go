package core

import "context"

// ActorKind is a kind of [Actor].
type ActorKind string

// The kinds of actors.
const (
	ActorOwnerKey ActorKind = "owner_key" // a program with an owner's key; the id is that of the key
	ActorPerson   ActorKind = "person"    // a person who has signed in; the id is that of the person
	ActorCommand  ActorKind = "command"   // a command on the server; the id is the name of the command, the name that of the user of the system
	ActorConfig   ActorKind = "config"    // the configuration of the server
	ActorSystem   ActorKind = "system"    // Limitkeeper itself
)

// Actor is who changes an account.
type Actor struct {
	Kind ActorKind `json:"kind"`
	ID   string    `json:"id,omitempty"`
	Name string    `json:"name,omitempty"`
	IP   string    `json:"-"` // the address that the request came from, "" for none
}

type actorKey struct{}

// WithActor returns a context whose changes are made by an actor.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorOf returns the actor of a context: Limitkeeper itself if the context has none.
func ActorOf(ctx context.Context) Actor {
	if a, ok := ctx.Value(actorKey{}).(Actor); ok {
		return a
	}
	return Actor{Kind: ActorSystem}
}
