package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// recorder records requests and changes before they are sent, and their answers.
type recorder interface {
	requesting(testRequest)
	answered(name string, o outcome, used int64)
	creating(kind, name string)
	created(name string)
	deleting(name string)
	deleted(name string)
}

// traffic uses a store from many goroutines: it counts requests, creates and deletes keys and users, writes checkpoints
// and removes expired history.
type traffic struct {
	s             *Store
	recorder      recorder
	round         int
	crowd         bool         // create and delete users with many keys
	noRequests    bool         // make no requests
	snapshots     bool         // make snapshots
	refused       bool         // go on when the store refuses a call
	beforeRequest func() error // called before each request

	generation int  // part of request ids: each generation has its own
	expiring   bool // remove history, and send no request ids

	requests     atomic.Int64
	serial       atomic.Int64 // of resources
	stopped      atomic.Bool
	failed       atomic.Pointer[error]
	toCheckpoint chan struct{}
	group        sync.WaitGroup
}

const (
	trafficCallers = 8
	trafficIDs     = 40 // number of request ids of a key, both of a day and of a round
)

// start starts the goroutines.
func (w *traffic) start() {
	w.toCheckpoint = make(chan struct{}, 1)
	callers := trafficCallers
	if w.noRequests {
		callers = 0
	}
	for i := range callers {
		caller := fmt.Sprintf("/r%d/c%d", w.round, i)
		var serial int64
		w.loop(func() error { return w.randomStep(caller, &serial) })
	}
	w.loop(w.checkpoint)
	if w.crowd {
		w.loop(w.createAndDeleteCrowd)
	}
	if w.snapshots {
		w.loop(w.snapshot)
	}
}

// loop calls fn until the traffic is stopped.
func (w *traffic) loop(fn func() error) {
	w.group.Go(func() {
		for !w.stopped.Load() {
			if err := fn(); err != nil && !(w.refused && (isUnavailable(err) || errors.Is(err, eventlog.ErrTemporary))) {
				w.failed.CompareAndSwap(nil, &err)
				w.stop()
			}
		}
	})
}

// stop makes the goroutines end. wait waits for them.
func (w *traffic) stop() {
	w.stopped.Store(true)
	w.wakeCheckpointer()
}

func (w *traffic) wait() error {
	w.group.Wait()
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// randomStep makes a request, or rarely creates or deletes resources.
func (w *traffic) randomStep(caller string, serial *int64) error {
	w.requests.Add(1)
	if w.beforeRequest != nil {
		if err := w.beforeRequest(); err != nil {
			return err
		}
	}
	if rand.IntN(60) == 0 {
		w.wakeCheckpointer()
	}
	switch rand.IntN(200) {
	case 0:
		return w.createUser()
	case 1, 2:
		return w.useShortLivedKey(caller, serial)
	}
	_, err := w.consume(w.randomRequest(), caller, serial)
	return err
}

// wakeCheckpointer starts a checkpoint.
func (w *traffic) wakeCheckpointer() {
	select {
	case w.toCheckpoint <- struct{}{}:
	default:
	}
}

// randomRequest returns a random request.
func (w *traffic) randomRequest() testRequest {
	n := rand.IntN(fixtureKeys)
	a := testRequest{key: fixtureKey(n), user: int64(n%2 + 1), shared: rand.IntN(2) == 0, cost: rand.Int64N(3) + 1}
	switch rand.IntN(8) {
	case 0:
		a.deny = true
	case 1:
		a.id = fmt.Sprint("id ", w.generation, " day ", w.day(), " ", rand.IntN(trafficIDs))
	case 2:
		a.id = fmt.Sprint("id ", w.generation, " ", w.round, " ", rand.IntN(trafficIDs))
	}
	if w.expiring {
		a.id = ""
	}
	return a
}

// at returns the time of a request. A day has eight rounds, and each round begins 3 hours after the previous one.
func (w *traffic) at() time.Time {
	return midnight.Add(time.Duration(min(w.round, lastRound))*3*time.Hour + time.Duration(w.requests.Load())*time.Microsecond)
}

var midnight = core.DateOf(noon).Start()

// day returns the number of the day. Request ids of a day are not repeated on another day, because they are not remembered
// for longer.
func (w *traffic) day() int { return min(w.round, lastRound) / 8 }

// lastRound is the last round with its own time. 150 rounds are 18 days: a later round would reach the next month, and its
// usage would start at 0.
const lastRound = 150

// consume makes a request, and records the request and its answer.
func (w *traffic) consume(a testRequest, caller string, serial *int64) (outcome, error) {
	*serial++
	a.name = fmt.Sprintf("%s/%d", caller, *serial)
	w.recorder.requesting(a)
	v, err := w.s.Consume(context.Background(), a.consumption(w.at()))
	o := allowed
	switch {
	case errors.Is(err, core.ErrKeyNotFound):
		o = refused
	case err != nil:
		return unknown, err
	case v.FirstTerms != nil:
		o = repeated
	case !v.Allowed:
		o = denied
	}
	if (o == denied) != a.deny && (o != refused && o != repeated) {
		return o, fmt.Errorf("%v: got %+v", a, v)
	}
	w.recorder.answered(a.name, o, v.Usage.Used)
	return o, nil
}

// resourceName returns a unique name of a resource.
func (w *traffic) resourceName(kind string) string {
	return fmt.Sprintf("%s_%d_%d", kind, w.round, w.serial.Add(1))
}

// createUser creates a user with a key.
func (w *traffic) createUser() error {
	name := w.resourceName("user")
	u := &core.User{AccountID: acct, Name: name, Email: new(name + "@example.com"), ExternalID: name, PlanID: fixturePlan}
	w.recorder.creating(userResource, name)
	err := w.s.Update(context.Background(), acct, func(tx core.Tx) error {
		u.ID = 0
		return tx.PutUser(u)
	})
	if err != nil {
		return err
	}
	w.recorder.created(name)
	return w.createKey(idleKey, "of_"+name, u.ID)
}

func (w *traffic) createKey(kind, id string, user int64) error {
	w.recorder.creating(kind, id)
	err := w.s.Update(context.Background(), acct, func(tx core.Tx) error {
		return tx.PutKey(&core.Key{AccountID: acct, ID: id, UserID: user, PlanID: fixturePlan, Status: core.KeyActive, Digest: secrets.DigestOf(id)})
	})
	if err == nil {
		w.recorder.created(id)
	}
	return err
}

// useShortLivedKey creates a key, counts requests, deletes the key during other requests, and checks that the next request
// is refused.
func (w *traffic) useShortLivedKey(caller string, serial *int64) error {
	id := w.resourceName("mortal")
	if err := w.createKey(usedKey, id, shortLivedUser); err != nil {
		return err
	}
	a := testRequest{key: id, user: shortLivedUser, cost: 1}
	for i := range 4 {
		a.shared = i%2 == 0
		if o, err := w.consume(a, caller, serial); err != nil || o != allowed {
			return firstOf(err, fmt.Errorf("%v: got %d, want it allowed", a, o))
		}
	}
	if rand.IntN(4) == 0 {
		return nil // the key stays
	}
	concurrent := make(chan error)
	go func() {
		var serial int64
		var err error
		for i := 0; i < 3 && err == nil; i++ {
			_, err = w.consume(a, caller+"/"+id, &serial)
		}
		concurrent <- err
	}()
	w.recorder.deleting(id)
	err := w.s.Update(context.Background(), acct, func(tx core.Tx) error { return tx.DeleteKey(id) })
	if err == nil {
		w.recorder.deleted(id)
	}
	if err = firstOf(err, <-concurrent); err != nil {
		return err
	}
	if o, err := w.consume(a, caller, serial); err != nil || o != refused {
		return firstOf(err, fmt.Errorf("%v: got %d after it was deleted, want it refused", a, o))
	}
	return nil
}

// createAndDeleteCrowd creates a user with many keys and deletes the user, in many transactions of Badger.
func (w *traffic) createAndDeleteCrowd() error {
	name := w.resourceName("crowd")
	u := &core.User{AccountID: acct, Name: name, PlanID: fixturePlan}
	w.recorder.creating(crowdUser, name)
	err := w.s.Update(context.Background(), acct, func(tx core.Tx) error {
		u.ID = 0
		err := tx.PutUser(u)
		for i := 0; i < crowdKeys && err == nil; i++ {
			id := fmt.Sprint(name, "_", i)
			err = tx.PutKey(&core.Key{AccountID: acct, ID: id, UserID: u.ID, PlanID: fixturePlan, Status: core.KeyActive, Digest: secrets.DigestOf(id)})
		}
		return err
	})
	if err != nil {
		return err
	}
	w.recorder.created(name)
	return w.deleteUser(u)
}

func (w *traffic) deleteUser(u *core.User) error {
	w.recorder.deleting(u.Name)
	err := w.s.Update(context.Background(), acct, func(tx core.Tx) error { return tx.DeleteUser(u.ID) })
	if err == nil {
		w.recorder.deleted(u.Name)
	}
	return err
}

// snapshot makes a snapshot and closes it.
func (w *traffic) snapshot() error {
	c, err := w.s.newSnapshot(context.Background())
	if err != nil {
		return err
	}
	return c.Close()
}

// checkpoint waits for wakeCheckpointer, writes a checkpoint, and removes history when expiring is set.
func (w *traffic) checkpoint() error {
	<-w.toCheckpoint
	err := w.s.checkpoint()
	if err == nil && w.expiring {
		w.s.SetMaxHistory(1 << 10)
		err = firstOf(w.s.writeImage(atOnce), w.s.removeHistory(time.Now().AddDate(1, 0, 0)))
	}
	return err
}

var _ recorder = (*model)(nil)
