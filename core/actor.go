package core

import (
	"cmp"
	"context"
	"time"
)

// ActorKind is a kind of [Actor].
type ActorKind string

// The kinds of actors.
const (
	ActorOwnerKey ActorKind = "owner_key" // a program with an owner's key; the id is that of the key
	ActorPerson   ActorKind = "person"    // a person that has signed in to the dashboard; the id is that of the person, or sign_in for the account's own sign-in
	ActorCommand  ActorKind = "command"   // a command on the server; the id is the name of the command, the name that of the user of the system
	ActorConfig   ActorKind = "config"    // the configuration of the server
	ActorSystem   ActorKind = "system"    // Limitkeeper itself
)

// Actor is the cause of a change of an account: a key, a person, a command, the configuration or Limitkeeper itself.
type Actor struct {
	Kind ActorKind `json:"kind"`
	ID   string    `json:"id,omitempty"`
	Name string    `json:"name,omitempty"`
	IP   string    `json:"-"` // the address that the request came from, "" for none
}

// acting is the value of a context with an actor.
type acting struct {
	Actor
	at    time.Time // of the changes; changes with the zero time leave no entry
	bulk  string    // see WithBulk
	quiet bool      // see WithoutAudit
}

// OwnSignIn is the id of the actor of a session that began with the account's own password, or with a link from the server.
const OwnSignIn = "sign_in"

type actorKey struct{}

// actingIn returns the acting of a context, the zero value for none.
func actingIn(ctx context.Context) acting {
	a, _ := ctx.Value(actorKey{}).(acting)
	return a
}

func (a acting) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// WithActor returns a context whose changes are made by an actor.
func WithActor(ctx context.Context, a Actor) context.Context { return acting{Actor: a}.in(ctx) }

// ActorOf returns the actor of a context: Limitkeeper itself if the context has none.
func ActorOf(ctx context.Context) Actor {
	a := actingIn(ctx)
	a.Kind = cmp.Or(a.Kind, ActorSystem)
	return a.Actor
}

// WithAuditTime returns a context whose changes leave entries with the time at in the audit log. The service calls WithAuditTime before each change. A context of
// [WithoutAudit] stays as it is.
func WithAuditTime(ctx context.Context, at time.Time) context.Context {
	a := actingIn(ctx)
	if a.quiet {
		return ctx
	}
	a.Actor, a.at = ActorOf(ctx), at
	return a.in(ctx)
}

// WithoutAudit returns a context whose changes leave no entry in the audit log, such as the users that a request creates.
func WithoutAudit(ctx context.Context) context.Context { return acting{quiet: true}.in(ctx) }

// WithBulk returns a context in which each transaction leaves a single entry, with the given action. The entry has the numbers of changed resources in
// place of their members. Imports use WithBulk: the entries of a million keys would drop all others.
func WithBulk(ctx context.Context, action string) context.Context {
	a := actingIn(ctx)
	a.bulk = action
	return a.in(ctx)
}
