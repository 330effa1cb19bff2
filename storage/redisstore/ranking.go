package redisstore

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// A ranking is in the slot of its account: see scripts/rank.lua. Decisions write in the slots of users, so their changes of rankings are
// queued in the process and sent in batches.

// rankEvery is the time that changes of rankings stay in the queue.
const rankEvery = 250 * time.Millisecond

// rankBatch is the maximum number of changes in one run of rank.lua, which blocks the master. 200 changes take about 10 ms, as does the removal
// of the ended windows of core.MaxSwept counters.
const rankBatch = 200

// maxWaiting is the maximum number of counters in the queue. Beyond it, new changes are dropped, and their account is ranked again.
const maxWaiting = 100_000

// rankQueue has the queued changes of rankings.
type rankQueue struct {
	mu      sync.Mutex
	waiting map[core.CounterID][]core.Fill
	dropped map[string]bool // accounts with dropped changes
	sending bool            // sendRanks runs
	quit    chan struct{}   // closed by Close
}

// add adds changes to the queue. send reports that the caller must run sendRanks, because no goroutine runs it.
func (q *rankQueue) add(account string, list []core.Ranked) (send bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == nil {
		q.waiting = map[core.CounterID][]core.Fill{}
	}
	for _, c := range list {
		c.Account = account
		has, known := q.waiting[c.CounterID]
		if !known && len(q.waiting) >= maxWaiting {
			q.dropLocked(account)
			continue
		}
		q.waiting[c.CounterID] = core.RaiseFills(has, c.Fills)
	}
	send = !q.sending
	q.sending = true
	return send
}

// drop records that changes of an account were dropped.
func (q *rankQueue) drop(account string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropLocked(account)
}

func (q *rankQueue) dropLocked(account string) {
	if q.dropped == nil {
		q.dropped = map[string]bool{}
	}
	q.dropped[account] = true
}

// take empties the queue. It returns the changes by account.
func (q *rankQueue) take() (changes map[string][]core.Ranked, dropped map[string]bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	changes = map[string][]core.Ranked{}
	for id, fills := range q.waiting {
		changes[id.Account] = append(changes[id.Account], core.Ranked{CounterID: id, Fills: fills})
	}
	dropped = q.dropped
	q.waiting, q.dropped = nil, nil
	return changes, dropped
}

// stopIfEmpty reports whether the queue is empty. sendRanks then stops, and the next add starts it again.
func (q *rankQueue) stopIfEmpty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sending = len(q.waiting)+len(q.dropped) > 0
	return !q.sending
}

// Rank implements [core.Store].
func (s *Store) Rank(ctx context.Context, account string, list []core.Ranked, soon bool) error {
	if len(list) == 0 {
		return s.refusal()
	}
	if !soon || slices.ContainsFunc(list, func(c core.Ranked) bool { return c.Exact }) {
		return s.rank(ctx, s.reads, account, list)
	}
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	if s.rankQueue.add(account, list) {
		s.background.Go(s.sendRanks)
	}
	return nil
}

// sendRanks sends the queued changes, until the queue is empty. Close waits for one attempt. After a loss, the changes stay queued until [Store.Accept].
func (s *Store) sendRanks() {
	for closing := false; !closing; {
		select {
		case <-s.rankQueue.quit:
			closing = true
		case <-time.After(rankEvery):
		}
		if s.refusal() == nil {
			s.sendRanksOnce(closing)
		}
		if s.rankQueue.stopIfEmpty() {
			return
		}
	}
}

// sendRanksOnce sends the queued changes. After an error, the changes of that account are queued again, unless the store is closing.
func (s *Store) sendRanksOnce(closing bool) {
	changes, dropped := s.rankQueue.take()
	for account, list := range changes {
		for part := range slices.Chunk(list, rankBatch) {
			if err := s.withTimeout(func(ctx context.Context) error { return s.rank(ctx, s.client, account, part) }); err == nil {
				list = list[len(part):]
				continue
			}
			if closing {
				return
			}
			s.rankQueue.add(account, list)
			break
		}
	}
	for account := range dropped {
		forget := s.client.B().Del().Key(s.o.account(account).rankingState()).Build()
		if err := s.withTimeout(func(ctx context.Context) error { return s.client.Do(ctx, forget).Error() }); err != nil {
			s.rankQueue.drop(account)
		}
	}
}

// withTimeout calls fn with the timeout of one call.
func (s *Store) withTimeout(fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.o.Timeout)
	defer cancel()
	return fn(ctx)
}

// rank changes a ranking, rankBatch counters at a time.
func (s *Store) rank(ctx context.Context, by rueidis.Client, account string, list []core.Ranked) error {
	for part := range slices.Chunk(list, rankBatch) {
		if _, err := s.runRank(ctx, by, account, core.RankingQuery{At: time.Unix(0, 0)}, core.Page{}, part); err != nil {
			return err
		}
	}
	return nil
}

// runRank runs rank.lua, which changes the counters of a list and returns a page.
func (s *Store) runRank(ctx context.Context, by rueidis.Client, account string, q core.RankingQuery, p core.Page, list []core.Ranked) ([]rueidis.RedisMessage, error) {
	n := s.o.account(account)
	args := []string{strconv.FormatInt(q.At.Unix(), 10), strconv.Itoa(s.maxRanked), strconv.Itoa(core.MaxSwept),
		q.Meter, strconv.FormatInt(q.From, 10), strconv.Itoa(min(p.Offset(), core.MaxRanked)), strconv.Itoa(p.Size)}
	for _, c := range list {
		how := "raise"
		if c.Exact {
			how = "replace"
		}
		args = append(args, record.RankName(c.CounterID), packFills(c.Fills), how)
	}
	answer, err := rankScript.run(ctx, by, []string{n.key("ranking"), n.key("ranked"), n.key("ranking-ends"), n.rankingState()}, args).ToArray()
	return answer, unavailable(err)
}

// Ranking implements [core.Store].
func (s *Store) Ranking(ctx context.Context, account string, q core.RankingQuery, p core.Page) (page core.Ranking, err error) {
	answer, err := s.runRank(ctx, s.reads, account, q, p, nil)
	if err != nil {
		return page, err
	}
	page.Behind = number(answer[0]) == core.MaxSwept
	page.Total = int(number(answer[1]))
	if whole, _ := text(answer[2]); whole != "" {
		ns, err := strconv.ParseInt(whole, 10, 64)
		if err != nil {
			return core.Ranking{}, record.ErrDamaged
		}
		page.WholeAt = time.Unix(0, ns).UTC()
	}
	for i := 3; i+1 < len(answer); i += 2 {
		name, _ := text(answer[i])
		packed, _ := text(answer[i+1])
		id, err := record.RankedCounter(account, name)
		if err != nil {
			return core.Ranking{}, err
		}
		fills, err := unpackFills(packed)
		if err != nil {
			return core.Ranking{}, err
		}
		page.Counters = append(page.Counters, core.Ranked{CounterID: id, Fills: fills})
	}
	return page, nil
}

// CompleteRanking implements [core.Store].
func (s *Store) CompleteRanking(ctx context.Context, account string, at time.Time) error {
	state := s.o.account(account).rankingState()
	if at.IsZero() {
		return unavailable(s.do(ctx, s.client.B().Del().Key(state).Build()).Error())
	}
	return unavailable(s.do(ctx, s.client.B().Hset().Key(state).FieldValue().FieldValue("whole", strconv.FormatInt(at.UnixNano(), 10)).Build()).Error())
}

// packFills returns fills in the format of rank.lua.
func packFills(fills []core.Fill) string {
	var b []byte
	for _, f := range fills {
		b = append(append(b, byte(len(f.Meter))), f.Meter...)
		b = record.AppendUint(append(b, byte(f.Period)), 4, uint64(f.Percent))
		b = record.AppendUint(b, 5, uint64(max(0, f.End)))
	}
	return string(b)
}

func unpackFills(packed string) (fills []core.Fill, err error) {
	r := record.NewReader([]byte(packed))
	for !r.Ended() && !r.Failed() {
		meter := core.Intern(string(r.Bytes(int(r.Uint(1)))))
		fills = append(fills, core.Fill{Meter: meter, Period: core.Period(r.Uint(1)), Percent: int64(r.Uint(4)), End: int64(r.Uint(5))})
	}
	if r.Failed() {
		return nil, record.ErrDamaged
	}
	return fills, nil
}
