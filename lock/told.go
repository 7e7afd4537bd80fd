package lock

import "time"

// Age returns how long ago a time was, by the clock of this node; 0 for none or one to come.
func (s *Service) Age(at Epoch) time.Duration {
	if at == 0 {
		return 0
	}
	return max(0, time.Duration(epoch(s.now())-at)*time.Millisecond)
}

func epoch(t time.Time) Epoch { return Epoch(t.UnixMilli()) }

// Life is what is told of a lease that has just been granted or renewed.
type Life struct {
	TTL time.Duration
	// Expires is when the lease ends if it is not renewed, at the earliest, by the clock of
	// this node.
	Expires Epoch
}

// life returns that of a lease with a time to live in seconds, for which began was before.
func life(began time.Time, ttl int64) Life {
	lives := time.Duration(ttl) * time.Second
	return Life{TTL: lives, Expires: epoch(began.Add(lives))}
}
