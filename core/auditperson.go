package core

// people adds the changes of the people of an account: a new person, another role, another link or password, and a removed person. Signing in is no
// change.
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

func auditPerson(p *Person) auditView {
	if p == nil {
		return nil
	}
	return auditFields(p, "invitation", "seen_at")
}
