package dashboard

import (
	"strconv"
	"time"
)

// regeneration gives a key or an owner's key a new value.
type regeneration struct {
	path, back       string // of the key, and of the page afterwards, below Base
	what, name, hint string
	text             string   // what happens
	graces           []option // the choices for the old value
	first            string   // of graces
	longest          time.Duration
	do               func(grace time.Duration) (secret string, err error) // a negative grace keeps the old value
}

var regenerationPage = formPage[*regeneration]{view: regenerationForm, send: regenerate}

func regenerationForm(q *request, g *regeneration) (formView, error) {
	f := q.form(g.path+"/regenerate", "Regenerate", g.back,
		field{Name: "grace", Label: "Expire the old key", Type: "radio", Value: g.first, Options: g.graces})
	return formView{Title: "Regenerate “" + g.name + "”", Form: f, Text: g.text}, nil
}

func regenerate(q *request, g *regeneration) error {
	grace, say, err := g.grace(q)
	if err != nil {
		return err
	}
	secret, err := g.do(grace)
	if err != nil {
		return err
	}
	return q.showSecret(newSecret{What: g.what, Name: g.name, Secret: secret, Say: say, Back: Base + g.back})
}

// grace returns the chosen time that the old value still works, and a sentence about it.
func (g *regeneration) grace(q *request) (grace time.Duration, say string, err error) {
	chosen := q.r.PostForm.Get("grace")
	seconds, err := strconv.ParseInt(chosen, 10, 64)
	switch {
	case chosen == "keep" && g.first == "keep":
		return -1, "The old key " + g.hint + " keeps working until you revoke it.", nil
	case err != nil || seconds < 0 || seconds > int64(g.longest/time.Second):
		return 0, "", errChoice
	case seconds == 0:
		return 0, "The old key " + g.hint + " has stopped working.", nil
	}
	grace = time.Duration(seconds) * time.Second
	return grace, "The old key " + g.hint + " works until " + when(q.svc.Now().Add(grace)) + ".", nil
}
