package core

import (
	"maps"
	"slices"
)

// people adds the changes of the people of an account: a new person, another role, link or password, and a removed person. Signing in leaves no entry.
func (a *Auditing) people(was, is *Access) {
	for i := range was.People {
		if p := &was.People[i]; is.Person(p.ID) == nil {
			a.add("person", p.ID, p.Name, auditPerson(p), nil)
		}
	}
	for i := range is.People {
		p := &is.People[i]
		before := was.Person(p.ID)
		a.add("person", p.ID, p.Name, auditPerson(before), auditPerson(p))
		if before == nil {
			continue
		}
		target := AuditTarget{"person", p.ID, p.Name}
		if in, had := p.Invitation, before.Invitation; in != nil && (had == nil || in.Digest != had.Digest) {
			a.entries = append(a.entries, a.entry("person.link", target, nil, auditView{}.add("expires_at", in.ExpiresAt)))
		}
		if p.Password != before.Password {
			a.entries = append(a.entries, a.entry("person.password", target,
				auditView{}.add("has_password", before.Password != ""), auditView{}.add("has_password", p.Password != "")))
		}
	}
}

// endedSessions adds an entry for each person whose sessions the actor, a person or a command, has ended. The sessions of the actor count if the actor signs
// out everywhere, which also forgets the browsers of the actor. These leave no entry: a single sign-out, a session that has expired, and the sessions of a removed person.
func (a *Auditing) endedSessions(was, is *Access) {
	if a.Kind != ActorPerson && a.Kind != ActorCommand {
		return
	}
	own := a.ID
	if own == OwnSignIn {
		own = ""
	}
	isOwn := func(b Browser) bool { return b.PersonID == own }
	ended := map[string]int{} // by person
	for i := range was.Sessions {
		se := &was.Sessions[i]
		switch {
		case slices.ContainsFunc(is.Sessions, func(other Session) bool { return other.Digest == se.Digest }), !se.alive(a.at), is.PasswordOf(se.PersonID) == nil:
		case se.PersonID == own && (!slices.ContainsFunc(was.Browsers, isOwn) || slices.ContainsFunc(is.Browsers, isOwn)):
		default:
			ended[se.PersonID]++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ended)) {
		action, target := "sign_in.end_sessions", AuditTarget{Kind: "sign_in"}
		if p := is.Person(id); p != nil {
			action, target = "person.end_sessions", AuditTarget{"person", p.ID, p.Name}
		}
		a.entries = append(a.entries, a.entry(action, target, nil, auditView{}.add("ended", ended[id])))
	}
}

func auditPerson(p *Person) auditView {
	if p == nil {
		return nil
	}
	return auditFields(p, "invitation", "seen_at")
}
