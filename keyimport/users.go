package keyimport

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// planSet has the plans of an account.
type planSet struct {
	byID   map[string]*core.Plan
	byName map[string][]*core.Plan
}

func loadPlans(ctx context.Context, s *service.Service, account string) (planSet, error) {
	set := planSet{map[string]*core.Plan{}, map[string][]*core.Plan{}}
	list := func(p core.Page) ([]*core.Plan, int, error) { return s.Plans(ctx, account, p) }
	return set, core.Each(ctx, core.ReadSize, list, func(pl *core.Plan) error {
		set.byID[pl.ID] = pl
		set.byName[pl.Name] = append(set.byName[pl.Name], pl)
		return nil
	})
}

// find returns the plan with a name or id, nil for "".
func (s planSet) find(name string) (*core.Plan, error) {
	if name == "" {
		return nil, nil
	}
	named, pl := s.byName[name], s.byID[name]
	switch {
	case pl != nil:
	case len(named) == 0:
		return nil, bad("plan: the account has no plan %s", quoted(name))
	case len(named) > 1:
		return nil, bad("plan: several plans are called %s: write the id of one", quoted(name))
	default:
		pl = named[0]
	}
	if pl.Inactive {
		return nil, bad("plan: the plan %s is inactive", quoted(name))
	}
	return pl, nil
}

// user is a user of the file. A million users need little memory: texts are hashes.
type user struct {
	id                      int64  // 0 until the user is created
	externalID, email, name uint64 // hashes of the columns; 0 until a row has the column
	line                    int32  // the first row of the user
	counted                 bool   // the report counts the user as created
	imported                bool   // a new key that draws on the user has usage
	plan                    string
	used                    int64 // by all rows of the user whose keys have no plan of their own
}

// userSet has the users of a file.
type userSet struct {
	seed     maphash.Seed
	list     []user
	byColumn map[uint64]int32 // the users, by the hash of external id or email
	ids      map[int64]int32  // the users that the account had
	empty    bool             // the account had no users
}

func newUserSet(ctx context.Context, s *service.Service, account string) (userSet, error) {
	_, n, err := s.Users(ctx, account, core.UserFilter{}, core.Page{Number: 1, Size: 1})
	return userSet{seed: maphash.MakeSeed(), byColumn: map[uint64]int32{}, ids: map[int64]int32{}, empty: n == 0}, err
}

// hash returns a hash of a column, 0 for "". Two of a million texts have one hash with a probability of 1 in 37 million.
func (s *userSet) hash(column, text string) uint64 {
	if text == "" {
		return 0
	}
	return max(1, maphash.String(s.seed, column+text))
}

// find returns the index of the user of a row. Rows with one external id, or else with one email, have one user.
func (s *userSet) find(ctx context.Context, svc *service.Service, account string, r *row) (int, error) {
	if r.externalID == "" && r.email == "" {
		return 0, bad("user_external_id, user_email or user_name is required")
	}
	want := user{externalID: s.hash("i", r.externalID), email: s.hash("e", core.FoldEmail(r.email)), name: s.hash("n", r.userName)}
	for _, h := range []uint64{want.externalID, want.email} {
		if i, known := s.byColumn[h]; known && h != 0 {
			return int(i), s.merge(i, want)
		}
	}
	if err := r.userPatch().Check(); err != nil {
		return 0, badOf(err, "user_")
	}
	stored, err := s.load(ctx, svc, account, r)
	if err != nil {
		return 0, err
	}
	want.line = int32(r.line)
	if stored == nil {
		return s.append(want), nil
	}
	if i, known := s.ids[stored.ID]; known {
		return int(i), s.merge(i, want)
	}
	want.id, want.plan = stored.ID, stored.PlanID
	return s.append(want), nil
}

// areKeys reports which rows of the batch have a key of the account as their external id. It skips the ids of earlier rows.
func (p *pass) areKeys() ([]bool, error) {
	ids := make([]string, len(p.batch))
	for i, r := range p.batch {
		if _, known := p.users.byColumn[p.users.hash("i", r.externalID)]; !known {
			ids[i] = r.externalID
		}
	}
	return p.s.AreKeys(p.ctx, p.account, ids, nil)
}

// half returns the first half of a digest, which tells the digests of a file apart.
func half(d secrets.Digest) [16]byte { return [16]byte(d[:16]) }

// checkExternalID checks that no external id of the file is the value of a key of the file, on this row or an earlier one.
func (p *pass) checkExternalID(r *row) error {
	if p.writes {
		return nil
	}
	if line, ok := p.externalIDs[half(r.digest)]; ok {
		return bad("the key is the external id of the user of line %d, and would be stored in clear", line)
	}
	if !secrets.HasKeyCharacters(r.externalID) {
		return nil
	}
	id := half(secrets.DigestOf(r.externalID))
	if line, ok := p.lines[id]; ok {
		return bad("%s: it is the key of line %d, and would be stored in clear", r.idColumn(), line)
	}
	if _, ok := p.externalIDs[id]; !ok {
		p.externalIDs[id] = int32(r.line)
	}
	return nil
}

// checkStoredUsers adds a problem for each key of the file that is the external id of a user of the account.
func (p *pass) checkStoredUsers() error {
	if p.users.empty || p.report.Keys == 0 {
		return nil
	}
	return p.s.EachKeyLikeExternalID(p.ctx, p.account, func(d secrets.Digest, u *core.User) {
		if line, ok := p.lines[half(d)]; ok {
			p.problems.add(int(line), fmt.Sprintf("the key is the external id of the user %d, stored in clear: give the user another external id first", u.ID))
		}
	})
}

// append adds a user.
func (s *userSet) append(u user) int {
	i := int32(len(s.list))
	s.list = append(s.list, u)
	for _, h := range []uint64{u.externalID, u.email} {
		if h != 0 {
			s.byColumn[h] = i
		}
	}
	if u.id != 0 {
		s.ids[u.id] = i
	}
	return int(i)
}

// merge checks that the columns of another row agree with the user, and sets the members that the user lacks.
func (s *userSet) merge(i int32, want user) error {
	u := &s.list[i]
	for _, c := range []struct {
		name      string
		has, want uint64
	}{{"user_external_id", u.externalID, want.externalID}, {"user_email", u.email, want.email}} {
		if other, known := s.byColumn[c.want]; c.want != 0 && known && other != i {
			return bad("%s: another user has it on line %d", c.name, s.list[other].line)
		}
		if c.want != 0 && c.has != c.want && (c.has != 0 || u.id == 0) {
			return bad("%s: the user has another one, or none, on line %d", c.name, u.line)
		}
	}
	if u.name != 0 && want.name != 0 && u.name != want.name {
		return bad("user_name: the user has another name on line %d", u.line)
	}
	u.name = cmp.Or(u.name, want.name)
	return nil
}

// load returns the user of the account for a row, nil if the row makes a new one.
func (s *userSet) load(ctx context.Context, svc *service.Service, account string, r *row) (*core.User, error) {
	if s.empty {
		return nil, nil
	}
	find := func(f core.UserFilter) (u *core.User, err error) {
		if f == (core.UserFilter{}) {
			return nil, nil
		}
		list, _, err := svc.Users(ctx, account, f, core.Page{Number: 1, Size: 1})
		if len(list) > 0 {
			u = list[0]
		}
		return u, err
	}
	byID, err := find(core.UserFilter{ExternalID: r.externalID})
	if err != nil {
		return nil, err
	}
	byEmail, err := find(core.UserFilter{Email: r.email})
	switch {
	case err != nil:
		return nil, err
	case byID != nil && byEmail != nil && byID.ID != byEmail.ID:
		return nil, bad("user_email: it belongs to another user of the account than the user_external_id")
	case byID != nil && r.email != "" && byEmail == nil:
		return nil, bad("user_email: the user with this user_external_id has another email in the account, or none")
	case byID == nil && byEmail != nil && r.externalID != "" && byEmail.ExternalID != "":
		return nil, bad("user_external_id: the user with this user_email has another one in the account")
	}
	return cmp.Or(byID, byEmail), nil
}

// byID returns the user with an id that the account has.
func (s *userSet) byID(ctx context.Context, svc *service.Service, account string, id int64) (*user, error) {
	i, known := s.ids[id]
	if !known {
		stored, err := svc.User(ctx, account, id)
		if err != nil {
			return nil, err
		}
		i = int32(s.append(user{id: id, plan: stored.PlanID}))
	}
	return &s.list[i], nil
}

// userPatch returns the members of a new user.
func (r *row) userPatch() core.UserPatch {
	p := core.UserPatch{Name: new(cmp.Or(r.userName, r.externalID, r.email))}
	if r.externalID != "" {
		p.ExternalID = core.Some(r.externalID)
	}
	if r.email != "" {
		p.Email = core.Some(r.email)
	}
	return p
}
