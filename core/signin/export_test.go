package signin

// OnHash calls fn before each password is hashed, and hashes with little memory.
func (s *Service) OnHash(fn func()) {
	argon := s.hasher.idKey
	s.hasher.idKey = func(password, salt []byte, _, _ uint32, threads uint8, keyLen uint32) []byte {
		fn()
		return argon(password, salt, 1, 8, threads, keyLen)
	}
}

// Attempts returns how many wrong passwords are remembered, and for how many names,
// browsers, addresses and networks.
func (s *Service) Attempts() (attempts, subjects int) {
	s.attempts.mu.Lock()
	defer s.attempts.mu.Unlock()
	return s.attempts.list.Len(), len(s.attempts.counts)
}

// MaxAttempts and MaxWaiting bound the attempts in memory and in the queue.
const (
	MaxAttempts = maxAttempts
	MaxWaiting  = maxWaiting
)

// Waiting returns how many passwords wait to be hashed.
func (s *Service) Waiting() int {
	s.hasher.mu.Lock()
	defer s.hasher.mu.Unlock()
	return len(s.hasher.waiting)
}
